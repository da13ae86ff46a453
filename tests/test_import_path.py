"""Tests that no file in the current folder is run in place of a module of Python or of a package with its name."""

import subprocess
import sys
from pathlib import Path

import pytest

from accel_rl.envs.make import import_name
from accel_rl.errors import UsageError
from tests.helpers.processes import TINY, Command, run
from tests.helpers.runs import rows

MODULES = ("yaml", "queue", "types", "random", "numpy", "torch", "json", "signal", "wandb", "envpool", "accel_rl")
SCRIPT = Path(sys.executable).parent / "accel-rl"
MY_ENV = "import gymnasium\nimport my_rules\nimport random, yaml\nrandom.seed\nyaml.safe_dump\n"
MY_ENV += "def make(**options):\n    return gymnasium.make('CartPole-v1')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that leave a trace when they are imported, and with a user's environment."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'a').write('{name}\\n')\n")
    (tmp_path / "my_env.py").write_text(MY_ENV)
    (tmp_path / "my_rules.py").write_text("")
    return tmp_path


def trace(folder: Path) -> list[str]:
    """Returns which of the files have been imported."""
    return (folder / "trace").read_text().split() if (folder / "trace").exists() else []


def test_the_script_imports_nothing_of_the_current_folder(folder: Path) -> None:
    result = run("list", "algos", cwd=folder, script=SCRIPT)
    assert result.status == 0 and trace(folder) == [], (trace(folder), result.err)


def test_a_file_that_is_named_like_a_module_is_said_to_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who names such a file learns why it is not found."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError, match=r"unknown wrapper 'make'.*random.py, which hides your .*rename"):
        import_name("random:make", "wrapper")


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("words", [["--workers", 2], ["--sampler", "serial"], ["--devices", "cpu,cpu"]])
def test_no_process_imports_a_file_in_the_place_of_a_module(words: list[object], folder: Path) -> None:
    """Workers, learners and the process that probes an environment find the right modules, and the user's."""
    tiny = [word for word in TINY if "--devices" not in words or word not in ("--device", "cpu")]
    arguments = ["train", "--env", "my_env:make", *tiny, *words, "--steps", 40, "--out", "run"]
    result = Command(*arguments, cwd=folder, script=SCRIPT).finish()
    assert result.status == 0 and trace(folder) == [], (trace(folder), result.err)
    assert rows(folder / "run")[-1]["time/total_timesteps"] == "40"
    again = Command("train", "--resume", "run", "--steps", 80, cwd=folder, script=SCRIPT).finish()
    assert again.status == 0 and trace(folder) == [], (trace(folder), again.err)


@pytest.mark.slow
def test_doctor_runs_no_file_of_the_current_folder(folder: Path) -> None:
    """The report calls a package that is not installed missing, even if a file has its name."""
    result = run("doctor", cwd=folder, script=SCRIPT, within_s=200)
    assert trace(folder) == [] and "Traceback" not in result.err, (trace(folder), result.err)


def test_the_module_does_not_either(tmp_path: Path) -> None:
    """`python -m accel_rl` imports the same as the script, although Python puts the current folder first."""
    (tmp_path / "yaml.py").write_text("raise SystemExit(9)\n")
    command = [sys.executable, "-m", "accel_rl", "list", "presets"]
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
