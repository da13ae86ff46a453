"""Tests that checkpoints of other users, which are unpickled, are refused unless they are trusted."""

import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import accel_rl
from accel_rl.cli import main
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.directory import is_finished
from tests.helpers.runs import TINY_DQN_RUN

# A DQN's checkpoints keep the replay in a separate file.
RUN: dict[str, Any] = {**TINY_DQN_RUN, "warmup_steps": 20, "n_step": 1, "normalize_returns": False}
RUN |= {"checkpoint_interval_steps": 20}
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return accel_rl.train(**RUN, steps=40, out=tmp_path_factory.mktemp("trust") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def test_a_checkpoint_of_another_user_is_resumed_only_with_trust(run: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert main(["train", "--resume", str(run), "--steps", "60"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    owner = pwd.getpwuid(os.getuid()).pw_name
    assert f"checkpoint.pt belongs to user {owner}, not to you" in line and "can run code" in line and "--trust" in line
    for name in ("checkpoint.pt", "checkpoint.previous.pt", "replay-40.pt"):
        with pytest.raises(UsageError, match=f"{name} belongs to user"):
            checkpoint.load(run / name)
    with pytest.raises(UsageError, match="belongs to user"):
        is_finished(run, {})
    assert is_finished(run, {}, trust=True)
    (run / "summary.json").unlink()  # written after the checkpoint: a restart has to write it
    assert not is_finished(run, {}, trust=True)
    assert main(["train", "--resume", str(run), "--steps", "60", "--trust"]) == 0
    assert not (run / "replay-20.pt").exists()  # the previous checkpoint was read, to know what it needs


def test_a_checkpoint_that_anybody_may_change_is_resumed_only_with_trust(run: Path, capfd: Any) -> None:
    """A checkpoint that any user may change needs --trust; a sticky folder like /tmp does not."""
    for path, mode, safe in ((run, 0o777, 0o1777), (run / "checkpoint.pt", 0o666, 0o664)):
        path.chmod(mode)
        message = f"every user of this machine may write to {path}, and .*chmod o-w {path}.*--trust"
        with pytest.raises(UsageError, match=message):
            checkpoint.load(run / "checkpoint.pt")
        path.chmod(safe)
    assert main(["train", "--resume", str(run), "--steps", "60"]) == 0


def test_systems_without_users_have_no_owners(run: Path, monkeypatch: Any) -> None:
    """Runs can be resumed on systems without user ids."""
    monkeypatch.delattr(os, "geteuid")
    accel_rl.train(resume=run, steps=60)


def give_away(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.chown(path, NOBODY, NOBODY)


@needs_root
@pytest.mark.slow
@pytest.mark.multiprocess
def test_trust_reaches_every_learner(tmp_path: Path, capfd: Any) -> None:
    """--trust holds for every learner's checkpoint and replay."""
    settings = {**RUN, "device": "auto", "devices": "cpu,cpu", "share_processors": True}
    run = accel_rl.train(**settings, steps=40, out=tmp_path / "run")
    give_away(run)
    words = ["train", "--resume", str(run), "--steps", "80"]
    assert main(words) == 2
    assert "checkpoint.pt belongs to user" in capfd.readouterr().err
    assert main([*words, "--trust"]) == 0
    assert checkpoint.load(run / "checkpoint.pt")["steps"] == 80


@needs_root
@pytest.mark.slow
@pytest.mark.multiprocess
def test_trust_reaches_the_runs_of_an_experiment(tmp_path: Path, capfd: Any) -> None:
    settings = {name: value for name, value in RUN.items() if name not in ("device", "algo")}
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump({"settings": settings, "grid": [{"algo": "dqn"}], "seeds": [0]}))
    words = ["launch", "--experiment", str(file), "--devices", "cpu", "--out", str(tmp_path / "out"), "--steps"]
    assert main([*words, "40"]) == 0
    give_away(tmp_path / "out")
    assert main([*words, "60"]) == 1
    assert "belongs to user" in capfd.readouterr().err
    assert main([*words, "60", "--trust"]) == 0
