"""Tests that the files for continuous integration agree with each other and with setup.cfg."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
SETUP = (ROOT / "setup.cfg").read_text()


def commands(job: str) -> list[str]:
    return [step["run"] for step in WORKFLOW[job]["steps"] if "run" in step]


def test_the_workflow_runs_what_contributors_run() -> None:
    """The workflow runs .ci/run on every Python that setup.cfg names, and its targets are in the Makefile."""
    assert commands("all") == [".ci/run"]
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", SETUP)
    assert WORKFLOW["all"]["strategy"]["matrix"]["python"] == promised
    makefile = (ROOT / "Makefile").read_text()
    run = re.findall(r"^for target in (.*); do", (ROOT / ".ci/run").read_text(), re.MULTILINE)[0].split()
    assert run == ["lint", "docs", "test", "dist", "test-slow"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in run)


def test_the_oldest_versions_are_those_of_setup_cfg() -> None:
    """The job for the oldest simulators installs the lower bounds of setup.cfg."""
    found = re.search(r"\$\((sed .* setup\.cfg)\)", " ".join(commands("oldest-simulators")))
    assert found
    said = subprocess.run(found[1], shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    oldest = {name: re.search(rf"^ +{name}>=(\S+)$", SETUP, re.MULTILINE) for name in ("gymnasium", "ale-py")}
    assert said.split() == [f"{name}=={match[1]}" for name, match in oldest.items() if match]


def test_ruff_is_the_same_everywhere() -> None:
    """pre-commit and `make lint` use one version of ruff, for the oldest supported Python."""
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()
    oldest = re.search(r"^python_requires = >=3\.(\d+)$", SETUP, re.MULTILINE)
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert oldest and ruff["target-version"] == f"py3{oldest[1]}"


@pytest.mark.slow
def test_gpu_tests_need_no_optional_package() -> None:
    """With only the requirements and pytest installed, all files are collected, and tests of the GPU code run."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.without_extras", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for more in (["--collect-only"], ["-m", "gpu", "--gpu", "fake", "tests/hardware/test_capture.py"]):
        done = subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr
