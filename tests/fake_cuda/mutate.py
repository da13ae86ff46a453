"""Plants bugs into the GPU code, one at a time, and says which tests find each.

    python tests/fake_cuda/mutate.py [NAME ...]       all of mutations.yaml by default

Each bug is one replacement in one file, made in a copy of the checkout, where those of `make test` are run until one
fails: first the tests marked `gpu`, then the others. The table goes to the standard output; exit status 1 if a
replacement no longer applies."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MUTATIONS = Path(__file__).parent / "mutations.yaml"
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "dist", "build")
TIMEOUT_S = 900  # a bug may make the tests hang
TESTS = [sys.executable, "-m", "pytest", "-x", "-n", "2", "--dist", "loadfile", "--timeout", "120", "tests", "-m"]
STAGES = ("gpu and not slow", "not gpu and not slow")


def plant(mutation: dict[str, Any], checkout: Path) -> bool:
    """Changes the file; returns False if what it should replace is not there exactly once."""
    path = checkout / mutation["file"]
    text = path.read_text()
    if text.count(mutation["old"]) != 1:
        return False
    path.write_text(text.replace(mutation["old"], mutation["new"]))
    return True


def find(checkout: Path) -> str:
    """Runs the tests; returns the first that fails, or "not caught"."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    for stage in STAGES:
        command = [*TESTS, stage]
        try:
            ran = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "hangs"
        if failed := re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", ran.stdout, re.MULTILINE):
            return failed[1]
        if ran.returncode:
            return f"exit status {ran.returncode}"
    return "not caught"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    mutations = [each for each in yaml.safe_load(MUTATIONS.read_text()) if not names or each["name"] in names]
    all_apply = True
    for mutation in mutations:
        with tempfile.TemporaryDirectory() as folder:
            checkout = Path(folder) / "accel_rl"
            shutil.copytree(ROOT, checkout, symlinks=True, ignore=NOT_COPIED)
            applies = plant(mutation, checkout)
            all_apply &= applies
            result = find(checkout) if applies else "does not apply any more"
        print(f"| {mutation['name']} | {mutation['file'].removeprefix('accel_rl/')} | {result} |", flush=True)
    return not all_apply


if __name__ == "__main__":
    sys.exit(main())
