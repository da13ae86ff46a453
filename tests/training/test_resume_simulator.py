"""Tests of runs that are resumed with another simulator, or without asking for one."""

from pathlib import Path

import pytest
import yaml

import accel_rl
from accel_rl.envs.games import atari_states
from accel_rl.errors import RunError, UsageError

SETTINGS = {
    "algo": "a2c",
    "env": "pong",
    "envs": 2,
    "sampler": "serial",
    "eval_interval_steps": 0,
    "tensorboard": False,
}


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


@pytest.mark.slow
def test_auto_goes_on_with_the_simulator_of_the_checkpoint(tmp_path: Path) -> None:
    """With --simulator auto, a resumed run keeps its checkpoint's simulator."""
    folder = accel_rl.train(**SETTINGS, simulator="ale", steps=20, out=tmp_path / "run")
    accel_rl.train(resume=folder, steps=40, simulator="auto")
    assert "simulator   ale: it has written the checkpoint" in log(folder)
    assert yaml.safe_load((folder / "config.yaml").read_text())["simulator"] == "auto"


@pytest.mark.slow
def test_a_resume_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume that fails leaves the simulator in config.yaml as it was."""
    folder = accel_rl.train(**SETTINGS, simulator="native", steps=20, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(atari_states, "_plays_equally", lambda *_: False)
        with pytest.raises((UsageError, RunError), match="does not continue exactly on ale"):
            accel_rl.train(resume=folder, steps=40, simulator="ale")
    assert yaml.safe_load((folder / "config.yaml").read_text())["simulator"] == "native"
    accel_rl.train(resume=folder, steps=40, simulator="ale")
    assert yaml.safe_load((folder / "config.yaml").read_text())["simulator"] == "ale"
