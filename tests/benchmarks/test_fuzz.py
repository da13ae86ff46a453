"""The program that draws random settings tells refusals from failures and shows how to repeat a failure."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from accel_rl.errors import UsageError
from fuzz import Found, attempt, shorten

ROOT = Path(__file__).parents[2]


def trial(run: dict[str, Any], folder: Path) -> None:
    """Does what a run's key `how` names; fails only if there is a `size`, too."""
    if run.get("how") == "writes":
        folder.mkdir()
    if run.get("how") in ("writes", "refuses", "says more"):
        raise UsageError("no\nand no" if run["how"] == "says more" else "no")
    if run.get("how") == "fails" and "size" in run:
        raise KeyError("size")


def test_refusals_are_told_from_failures() -> None:
    """A traceback, several lines, or a folder left behind is not a refusal."""
    found = Found()
    for how in ("trains", "trains", "refuses", "says more", "writes"):
        run = {"how": how, "size": 3}
        found.add(run, attempt(trial, run))
    assert (found.passed, found.num_refused, found.num_examples) == (2, 1, 5)
    messages = [failure["message"] for failure in found.failures.values()]
    assert ["several lines" in messages[0], "folder was written" in messages[1]] == [True, True]


def test_a_failure_is_shown_with_what_repeats_it() -> None:
    """Failing settings are reduced to the few that cause the failure, and these still fail."""
    found, run = Found(), {"seed": 1, "how": "fails", "envs": 2, "size": 3}
    found.add(run, attempt(trial, run))
    (place,) = found.failures
    shorten(trial, found, place)
    assert found.failures[place]["example"] == repr({"how": "fails", "size": 3})


@pytest.mark.slow
def test_the_program_runs(tmp_path: Path) -> None:
    """The program runs and writes a readable result."""
    file = tmp_path / "fuzz.json"
    counts = [word for name in ("resolve", "train", "texts") for word in (f"--{name}", "4")]
    command = [sys.executable, ROOT / "benchmarks/stress/fuzz.py", *counts, "--json", file]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    result = json.loads(file.read_text())
    assert result["train"]["passed"] >= 4 and result["machine"] and result["options"]["seed"] == 1
