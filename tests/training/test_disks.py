"""Disks that refuse: a run goes on without what it can do without, and else leaves its last good checkpoint."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.errors import RunError
from accel_rl.training import checkpoint
from accel_rl.training.checkpoint import CHECKPOINT
from accel_rl.training.progress import _Events
from accel_rl.training.run_directory import reopen
from tests.helpers.processes import TINY, Command
from tests.helpers.runs import TINY_SERIAL_RUN, rows

RUN: dict[str, Any] = {**TINY_SERIAL_RUN, "algo": "dqn", "warmup_steps": 40, "batch_size": 8, "replay_size": 100}
RUN |= {"training_intensity": 2, "checkpoint_interval_steps": 40, "log_interval_steps": 20, "schedule_steps": 200}

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # of TensorBoard's thread
]


def fill(path: Path) -> None:
    """Makes the disk full for what is written to path."""
    path.symlink_to("/dev/full")


def test_a_run_goes_on_without_what_it_can_do_without(tmp_path: Path, capfd: Any) -> None:
    """Would catch a run that ends, or prints a traceback, for a line of its log; and rows of progress.csv that stay
    lost once the disk has room again."""

    def fill_table(row: dict[str, float]) -> None:
        if row["time/total_timesteps"] == 80:
            (tmp_path / "progress.csv").unlink()
            fill(tmp_path / "progress.csv")

    for name in ("log.txt", "machine.json"):
        fill(tmp_path / name)
    accel_rl.train(**RUN, steps=140, out=tmp_path, show=True, callbacks=[fill_table])
    err = capfd.readouterr().err
    for name in ("log.txt", "machine.json", "rows of progress.csv"):
        message = f"the run goes on without {name}, which cannot be written: No space left on device\n"
        assert err.count(message) == 1, err
    assert "Traceback" not in err
    assert not (tmp_path / "progress.csv").is_symlink()
    assert [row["time/total_timesteps"] for row in rows(tmp_path)] == [str(steps) for steps in range(20, 160, 20)]


def test_tensorboard_does_not_end_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Would catch a run that is over, and fails when its last events are written."""
    pytest.importorskip("tensorboard")
    events = _Events(tmp_path, 0)
    (file,) = tmp_path.glob("events.*")
    file.unlink()
    fill(file)
    events.write({"train/loss": 1.0}, 20)
    events.close()
    assert caplog.messages == [
        "the run goes on without TensorBoard's events, which cannot be written: No space left on device"
    ]


def full_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(run / f"{CHECKPOINT}.tmp")


def full_replay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(run / "replay-80.pt.tmp")


def full_policy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(run / "policy.safetensors.tmp")


def broken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)


def renamed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.rename(run.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("fault", "file", "why", "steps"),
    [
        (full_checkpoint, "checkpoint", "No space left on device; the previous one is intact", 40),
        (full_replay, "checkpoint", "No space left on device", 40),
        (full_policy, "policy", "No space left on device; the previous one is intact", 80),
        (broken, "checkpoint", "Input/output error", 40),
        (renamed, "checkpoint", "No such file or directory", 40),
    ],
)
def test_the_last_good_checkpoint_stays(
    fault: Callable[[Path, pytest.MonkeyPatch], None],
    file: str,
    why: str,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Would catch a run that goes on although it cannot be saved, and one that cannot be continued after that."""
    run = tmp_path / "run"

    def strike(row: dict[str, float]) -> None:
        if row["time/total_timesteps"] == 60:
            fault(run, monkeypatch)

    with pytest.raises(RunError, match=rf"^could not write the {file} .*: {why}$"):
        accel_rl.train(**RUN, steps=200, out=run, callbacks=[strike])
    monkeypatch.undo()
    run = run if run.exists() else run.with_name("elsewhere")
    assert checkpoint.load(run / CHECKPOINT)["steps"] == steps
    assert reopen(run, {}, None, None)[0].run.steps == 200


def test_a_full_disk_does_not_take_the_settings(tmp_path: Path) -> None:
    """Would catch a run whose config.yaml is emptied when it is resumed, and that is none after that."""
    run = accel_rl.train(**TINY_SERIAL_RUN, steps=20, out=tmp_path / "run")
    fill(run / "config.yaml.tmp")
    with pytest.raises(RunError, match=r"could not write the settings .*config\.yaml: No space left .* is intact"):
        accel_rl.train(resume=run, steps=40)
    accel_rl.train(resume=run, steps=40)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_runs_that_start_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    """Would catch two runs that both find the folder empty, and mix their files."""
    words = ["train", "--env", "CartPole-v1", *TINY, "--steps", 400, "--out", tmp_path / "run"]
    first, second = [command.finish() for command in [Command(*words), Command(*words)]]
    done, refused = (first, second) if first.status == 0 else (second, first)
    assert done.status == 0
    refused.assert_one_line(2)
    assert "is writing to the run's folder" in refused.err or "already holds a run" in refused.err
    assert (tmp_path / "run" / "command.txt").read_text().count("--out") == 1 and rows(tmp_path / "run")
