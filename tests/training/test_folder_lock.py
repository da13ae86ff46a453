"""Tests of the lock of a run's folder: one process writes there, and a second one is told which."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.cli import main
from accel_rl.distributed import launch
from accel_rl.errors import UsageError
from accel_rl.run_folder.lock import LOCK, locked
from tests.helpers.runs import TINY_LEARNERS_RUN, TINY_SERIAL_RUN, rows

HOLDS = """
import sys, time
from pathlib import Path
from accel_rl.run_folder.lock import locked

with locked(Path(sys.argv[1]), "run"):
    print("locked", flush=True)
    time.sleep(3600)
"""


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    """A lock ends with its process or its run, and a refusal names the process."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "locked\n"
        with pytest.raises(UsageError, match=f"^process {process.pid} on .* is writing to the run's folder"):
            locked(tmp_path, "run").__enter__()
        process.send_signal(signal.SIGKILL)
    for _ in range(2):
        with locked(tmp_path, "run"):
            assert (tmp_path / LOCK).read_text().startswith(f"{os.getpid()} on ")


@pytest.mark.parametrize("settings", [TINY_SERIAL_RUN, TINY_LEARNERS_RUN], ids=["one learner", "two"])
def test_a_run_is_alone_in_its_folder(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """A second run in a folder under way is refused, also with --resume and --overwrite."""
    out, refused = tmp_path / "run", []

    def try_both(*arguments: Any) -> None:
        for words in (["--resume", out], ["--out", out, "--overwrite", "--env", "CartPole-v1", "--device", "cpu"]):
            capfd.readouterr()
            status = main(["train", *map(str, words)])
            refused.append((status, capfd.readouterr().err))

    monkeypatch.setattr(launch, "_learn_alone", try_both)
    monkeypatch.setattr(launch, "supervise", try_both)
    accel_rl.train(**settings, steps=40, out=out)
    line = f"accel-rl: process {os.getpid()} on "
    assert [status for status, _ in refused] == [2, 2]
    assert all(text.startswith(line) and text.count("\n") == 1 for _, text in refused), refused
    monkeypatch.undo()
    accel_rl.train(**TINY_SERIAL_RUN, steps=40, out=out, overwrite=True)
    assert [row["time/total_timesteps"] for row in rows(out)] == ["40"]
