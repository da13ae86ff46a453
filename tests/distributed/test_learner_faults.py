"""Learners, their workers and the process that watches them die: what is said, what is saved, that nothing is left."""

import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_rl.training import checkpoint
from tests.helpers.processes import Command, Result

FOREVER = 10**9
STRUCK = "tests.helpers.toy_algos:Struck"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes in the way of Linux")


def start(run: Path, *flags: Any, algo: str = STRUCK) -> Command:
    """Two learners of two environments each."""
    words: list[Any] = ["train", "--algo", algo, "--env", "CartPole-v1", "--devices", "cpu,cpu", "--out", run]
    words += ["--envs", 4, "--steps", FOREVER, "--eval-interval-steps", 0, "--log-interval-steps", 20]
    words += ["--checkpoint-interval-steps", 80, "--no-tensorboard", "--sampling-threads", 1, "--learning-threads", 1]
    return Command(*words, *flags)


def mark_of(run: Path, command: Command) -> int:
    """The process that waits to be killed."""
    mark = run / "mark"
    command.wait_for(mark.exists)
    return int(mark.read_text())


def assert_failed(result: Result, run: Path, message: str) -> None:
    assert result.status == 1, result.err
    assert re.search(f"accel-rl: {message}", result.err), result.err
    assert re.search(f"ERROR {message}", (run / "log.txt").read_text())
    assert result.err.count("accel-rl: ") == 1 and "Exception ignored" not in result.err, result.err


PHASES: dict[str, tuple[int, list[Any]]] = {
    # the learner that dies
    "sampling": (1, ["--sampler", "alternating", "--workers", 2]),
    "all_reduce": (1, ["--sampler", "serial"]),
    "lock": (1, ["--sampler", "serial", "--update", "central_store", "--normalize-observations"]),
    "checkpoint": (0, ["--sampler", "serial", "--update", "central_store"]),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_learner_that_is_killed_ends_the_run(tmp_path: Path, phase: str) -> None:
    """Would catch learners that wait for a dead one, blame for the one that only notices it, parameters that it has
    half written, and a checkpoint that is lost with it."""
    rank, flags = PHASES[phase]
    run = tmp_path / "run"
    command = start(run, "--how", phase, "--mark", run / "mark", *flags)
    pid = mark_of(run, command)
    command.wait_for(lambda: (run / "checkpoint.pt").exists())
    assert [process.pid for process in command.learners()].index(pid) == rank
    if phase == "all_reduce":
        time.sleep(0.3)  # from the mark to where it waits
    psutil.Process(pid).kill()
    assert_failed(command.finish(), run, rf"learner {rank} \(cpu, process {pid}\) was killed by SIGKILL\n")
    state = checkpoint.load(run / "checkpoint.pt")
    assert state["steps"] >= 80 and len(state["learners"]) == 2
    assert all(value.isfinite().all() for value in state["policy"].values())


def test_a_learner_that_raises_ends_the_run(tmp_path: Path) -> None:
    """Would catch a failure without its learner or traceback, and a traceback of one that is told of it."""
    result = start(tmp_path, "--how", "raise", "--sampler", "serial").finish()
    message = r"learner 1 \(cpu, process \d+\):\nTraceback (.|\n)*toy_algos(.|\n)*ValueError: cannot go on\n"
    assert_failed(result, tmp_path, message)
    assert result.err.count("Traceback") == 1 and "gloo" not in result.err


def test_a_worker_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    """Would catch environments that each learner counts from 0, and one that dies without its learner."""
    command = start(tmp_path, "--sampler", "alternating", "--workers", 2, "--seed", 11, algo="a2c")
    command.wait_for((tmp_path / "checkpoint.pt").exists)
    learner = command.learners()[1]
    (worker,) = (worker for worker in command.workers() if worker.parent().ppid() == learner.pid)
    worker.kill()
    where = (
        rf"worker 0 \(process {worker.pid}\), in environments? [23](, [23]| and [23]|-3)* \(run seed 11, CartPole-v1\)"
    )
    message = rf"learner 1 \(cpu, process {learner.pid}\): {where}( at action [01])?, was killed by SIGKILL\n"
    assert_failed(command.finish(), tmp_path, message)


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """Would catch learners and workers that go on when nobody watches them, or wait for one who will not come."""
    training = start(tmp_path / "training", "--sampler", "alternating", "--workers", 2, algo="a2c")
    training.wait_for((tmp_path / "training" / "checkpoint.pt").exists)
    assert len(training.descendants()) == 2 + 2 + 2  # learners, what starts their workers, workers
    training.process.kill()
    assert training.finish().status == -signal.SIGKILL
    starting = start(tmp_path / "starting", "--sampler", "serial", algo="a2c")
    starting.wait_for(lambda: len(starting.learners()) == 2)
    starting.process.kill()
    deadline = time.monotonic() + 30
    while starting.descendants() and time.monotonic() < deadline:  # they are still importing what they need
        time.sleep(0.1)
    assert starting.finish().status == -signal.SIGKILL


def test_the_second_signal_insists(tmp_path: Path) -> None:
    """Would catch a user who has to wait for a learner that hangs, and one who is not told to."""
    run = tmp_path / "run"
    command = start(run, "--how", "sampling", "--mark", run / "mark", "--sampler", "serial")
    mark_of(run, command)
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    assert command.finish().status == 130
