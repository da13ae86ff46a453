"""Tests of failing disks: a run goes on without what it can spare, or else leaves its last good checkpoint."""

import contextlib
import errno
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.errors import RunError, UsageError
from accel_rl.run_folder import checkpoint, directory
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.run_folder.directory import reopen
from accel_rl.training.progress import _Events, _Table
from tests.helpers.runs import TINY_DQN_RUN, TINY_RUN, TINY_SERIAL_RUN, rows

RUN: dict[str, Any] = {**TINY_DQN_RUN, "log_interval_steps": 20}

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")


def fill(path: Path) -> None:
    """Makes writes to path fail as on a full disk."""
    path.symlink_to("/dev/full")


def test_a_run_goes_on_without_what_it_can_do_without(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on without its log, and rows that a full disk refused are added to progress.csv once, later."""
    table, open_file = tmp_path / "progress.csv", Path.open

    @contextlib.contextmanager
    def append_and_fail(path: Path) -> Iterator[Any]:
        with open_file(path, "ab") as file:
            yield file
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_full(path: Path, mode: str = "r", **options: Any) -> Any:
        is_append = path == table and mode == "ab"
        return append_and_fail(path) if is_append else open_file(path, mode, **options)

    def fill_table(row: dict[str, float]) -> None:
        if row["time/total_timesteps"] == 80:
            monkeypatch.setattr(Path, "open", open_full)
            fill(tmp_path / "progress.csv.tmp")
        elif row["time/total_timesteps"] == 120:
            monkeypatch.undo()

    for name in ("log.txt", "machine.json.tmp"):
        fill(tmp_path / name)
    accel_rl.train(**RUN, steps=180, out=tmp_path, show=True, callbacks=[fill_table])
    err = capfd.readouterr().err
    for name in ("log.txt", "machine.json", "rows of progress.csv"):
        message = f"the run goes on without {name}, which cannot be written: No space left on device\n"
        assert err.count(message) == 1, err
    assert "Traceback" not in err
    assert [row["time/total_timesteps"] for row in rows(tmp_path)] == [str(steps) for steps in range(20, 200, 20)]


def test_a_table_takes_no_memory(tmp_path: Path) -> None:
    """The table of rows keeps its memory small and still knows the last value."""
    table, row = _Table(tmp_path / "progress.csv", 0), {f"train/{index}": index / 3 for index in range(20)}
    tracemalloc.start()
    try:
        for step in range(500):
            table.write({"time/total_timesteps": step, **row})
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert table.last("train/1") == 1 / 3 and table.last("train/20") is None
    assert len(rows(tmp_path)) == 500


def test_a_table_that_another_program_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "progress.csv"
    file.write_text("time/total_timesteps;train/loss\n20;1,5\n")
    with pytest.raises(UsageError, match=r"progress.csv is damaged .*; restore it, or move it away"):
        _Table(file, 20)
    assert file.read_text().endswith("20;1,5\n")


def test_tensorboard_does_not_end_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    """Events that cannot be written give one warning, and the run goes on."""
    pytest.importorskip("tensorboard")
    events = _Events(tmp_path, 0)
    assert events._file
    events._file.close()
    events._file = open("/dev/full", "wb")  # noqa: SIM115
    for steps in (20, 40):
        events.write({"train/loss": 1.0}, steps)
    events.close()
    assert capfd.readouterr().err == ""
    assert caplog.messages == [
        "the run goes on without TensorBoard's events, which cannot be written: No space left on device"
    ]


Fault = Callable[[Path, pytest.MonkeyPatch], object]


def full(name: str) -> Fault:
    return lambda run, _: fill(run / f"{name}.tmp")


def refused(call: str, number: int) -> Fault:
    """Returns a fault that makes a system call fail with this error."""

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return lambda _, monkeypatch: monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize(
    ("fault", "file", "why", "steps"),
    [
        (full(CHECKPOINT), "checkpoint", "No space left on device; the previous one is intact", 40),
        (full("replay-80.pt"), "checkpoint", "No space left on device", 40),
        (full("policy.safetensors"), "policy", "No space left on device; the previous one is intact", 80),
        (refused("fsync", errno.EIO), "checkpoint", "Input/output error", 40),
        (refused("replace", errno.EDQUOT), "checkpoint", "Disk quota exceeded", 40),
        (lambda run, _: run.rename(run.with_name("elsewhere")), "checkpoint", "No such file or directory", 40),
    ],
    ids=["full checkpoint", "full replay", "full policy", "broken", "over quota", "renamed"],
)
def test_the_last_good_checkpoint_stays(
    fault: Fault, file: str, why: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose checkpoint cannot be written ends and leaves its last good one to continue from."""
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


def test_a_users_own_files_are_left_alone(tmp_path: Path) -> None:
    """Only replays that checkpoints wrote are removed, whatever a user's files are called."""
    own = {"replay-x.pt", "replay-40-best.pt", "replay-notes.txt"}
    for name in {*own, "replay-40.pt", "replay-40-1.pt", "replay-80.pt.tmp"}:
        (tmp_path / name).touch()
    checkpoint.remove_older_replays(tmp_path, ["replay-80.pt", "replay-40-1.pt"])
    assert {path.name for path in tmp_path.iterdir()} == own | {"replay-40-1.pt", "replay-80.pt.tmp"}
    directory._clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == own


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that wait while the run waits for a slow disk are not taken for hung."""
    waited = list[int]()

    def fsync(descriptor: int) -> None:
        waited.append(descriptor)
        time.sleep(2.5 if len(waited) == 1 else 0.0)

    def slow_down(row: dict[str, float]) -> None:
        monkeypatch.setattr(os, "fsync", fsync)

    intervals = {"steps": 200, "log_interval_steps": 20, "checkpoint_interval_steps": 60, "env_timeout_s": 2.0}
    accel_rl.train(**TINY_RUN, **intervals, out=tmp_path, callbacks=[slow_down])
    assert len(waited) > 4 and int(rows(tmp_path)[-1]["time/total_timesteps"]) >= 200


def test_a_full_disk_does_not_take_the_settings(tmp_path: Path) -> None:
    """A full disk leaves config.yaml intact on resume, and the run can be resumed later."""
    run = accel_rl.train(**TINY_SERIAL_RUN, steps=20, out=tmp_path / "run")
    fill(run / "config.yaml.tmp")
    with pytest.raises(RunError, match=r"could not write the settings .*config\.yaml: No space left .* is intact"):
        accel_rl.train(resume=run, steps=40)
    accel_rl.train(resume=run, steps=40)
