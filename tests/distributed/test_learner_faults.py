"""When a learner, worker, launcher or supervisor dies, the run reports it and leaves nothing behind."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_rl.cli import main
from accel_rl.run_folder import checkpoint
from tests.helpers.processes import Command, Result

FOREVER = 10**9
STRUCK = "tests.helpers.toy_algos:Struck"

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in the way of Linux"),
]


def arguments(run: Path, *flags: Any, algo: str = STRUCK) -> list[str]:
    """Returns the arguments of a run of two learners with two environments each."""
    words: list[Any] = ["train", "--algo", algo, "--env", "CartPole-v1", "--devices", "cpu,cpu", "--out", run]
    words += ["--envs", 4, "--steps", FOREVER, "--eval-interval-steps", 0, "--log-interval-steps", 20]
    words += ["--checkpoint-interval-steps", 80, "--no-tensorboard", "--sampling-threads", 1, "--learning-threads", 1]
    return [str(word) for word in (*words, *flags)]


def start(run: Path, *flags: Any, algo: str = STRUCK) -> Command:
    return Command(*arguments(run, *flags, algo=algo))


def assert_failed(result: Result, run: Path, message: str) -> None:
    """Checks that the run has failed with this message, once on the console and in log.txt."""
    assert result.status == 1, result.err
    assert re.search(f"accel-rl: {message}", result.err), result.err
    assert re.search(f"ERROR {message}", (run / "log.txt").read_text())
    assert result.err.count("accel-rl: ") == 1 and "Exception ignored" not in result.err, result.err


@pytest.mark.parametrize(
    ("phase", "flags"),
    [
        ("all_reduce", []),
        pytest.param("lock", ["--update", "central_store", "--normalize-observations"], marks=pytest.mark.slow),
    ],
)
def test_a_killed_learner_ends_the_run(tmp_path: Path, capfd: Any, phase: str, flags: list[str]) -> None:
    """A killed learner ends the run in any phase; the error names it, and the last checkpoint is whole."""
    run, before = tmp_path / "run", psutil.Process().children(recursive=True)
    has_ended = threading.Event()
    killed: list[int] = []

    def strike() -> None:
        while not ((run / "mark").exists() and (run / "checkpoint.pt").exists()):
            if has_ended.wait(0.02):
                return
        if phase == "all_reduce":
            time.sleep(0.3)  # until it reaches the all-reduce; an earlier kill ends the run, too
        killed.append(int((run / "mark").read_text()))
        os.kill(killed[0], signal.SIGKILL)

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        status = main(arguments(run, "--sampler", "serial", "--how", phase, "--mark", run / "mark", *flags))
    finally:
        has_ended.set()
        striker.join()
    assert psutil.Process().children(recursive=True) == before
    message = rf"learner 1 \(cpu, process {killed[0]}\) was killed by SIGKILL \(.+\)\n"
    result = Result(status, *capfd.readouterr())
    assert_failed(result, run, message)
    assert result.err.endswith(f" report {run}\n")  # the command that makes a page about the run so far
    state = checkpoint.load(run / "checkpoint.pt")
    assert state["steps"] >= 80 and len(state["learners"]) == 2
    assert all(value.isfinite().all() for value in state["policy"].values())


def test_a_learner_that_raises_ends_the_run(tmp_path: Path, capfd: Any) -> None:
    """An exception in a learner ends the run with that learner's name and traceback, and no other traceback."""
    before = psutil.Process().children(recursive=True)
    status = main(arguments(tmp_path, "--how", "raise", "--sampler", "serial"))
    assert psutil.Process().children(recursive=True) == before
    result = Result(status, *capfd.readouterr())
    message = r"learner 1 \(cpu, process \d+\):\nTraceback (.|\n)*toy_algos(.|\n)*ValueError: cannot go on\n"
    assert_failed(result, tmp_path, message)
    assert result.err.count("Traceback") == 1 and "gloo" not in result.err


TIMEOUT_S = 3
LATE = rf"learner 1 \((cpu|cuda:1), process (\d+)\) has not answered for {TIMEOUT_S} s \(--learner-timeout-s\)\n"


@pytest.mark.slow
def test_a_stopped_learner_is_named(tmp_path: Path) -> None:
    """Learners that wait for a stopped one fail in time and name it."""
    flags = ["--devices", "cpu,cpu,cpu", "--envs", 6, "--sampler", "serial", "--learner-timeout-s", TIMEOUT_S]
    command = start(tmp_path / "run", *flags, "--share-processors", algo="a2c")
    command.wait_for((tmp_path / "run" / "checkpoint.pt").exists)
    stopped = command.learners()[1]
    stopped.suspend()
    result = command.finish(TIMEOUT_S + 30)
    assert_failed(result, tmp_path / "run", LATE)
    assert re.search(LATE, result.err)[2] == str(stopped.pid)  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.gpu(count=2)
def test_a_learner_that_hangs_is_named(tmp_path: Path, capfd: Any) -> None:
    """A learner that hangs is named even where no collective times out because NCCL lets the GPU wait."""
    run = tmp_path / "run"
    flags = ["--devices", "cuda:0,cuda:1", "--sampler", "serial", "--learner-timeout-s", TIMEOUT_S, "--how", "sampling"]
    status = main(arguments(run, *flags, "--mark", run / "mark"))
    assert_failed(Result(status, *capfd.readouterr()), run, LATE)
    assert f"process {(run / 'mark').read_text()})" in (run / "log.txt").read_text()


@pytest.mark.slow
def test_without_a_supervisor_an_absent_learner_is_named(tmp_path: Path) -> None:
    """Learners started by torchrun name the one that hangs in their own messages."""
    run, log = tmp_path / "run", tmp_path / "output.txt"
    words = arguments(run, "--sampler", "serial", "--learner-timeout-s", TIMEOUT_S, "--how", "sampling")
    words[words.index("--devices") : words.index("--devices") + 2] = ["--device", "cpu"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "accel_rl"]
    with log.open("w") as output:
        mark = ["--mark", str(run / "mark")]
        torchrun = psutil.Popen([*command, *words, *mark], stdout=output, stderr=output)
        try:
            while "has lost" not in log.read_text():
                assert torchrun.poll() is None, log.read_text()
                time.sleep(0.05)
        finally:
            for process in (*torchrun.children(recursive=True), torchrun):
                process.kill()
            torchrun.wait()
    lost = r"accel-rl: learner 0 on \S+ has lost learner 1, whose own messages may say why: Timed out waiting 3000ms"
    assert re.search(lost, log.read_text()), log.read_text()


@pytest.mark.slow
def test_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    """A killed worker ends the run; the error names its learner and the global numbers of its environments."""
    command = start(tmp_path, "--sampler", "alternating", "--workers", 2, "--seed", 11, algo="a2c")
    command.wait_for((tmp_path / "checkpoint.pt").exists)
    learner = command.learners()[1]
    (worker,) = (worker for worker in command.workers() if worker.parent().ppid() == learner.pid)
    worker.kill()
    where = (
        rf"worker 0 \(process {worker.pid}\), in environments? [23](, [23]| and [23]|-3)* \(run seed 11, CartPole-v1\)"
    )
    message = rf"learner 1 \(cpu, process {learner.pid}\): {where}( at action [01])?, was killed by SIGKILL \(.+\)\n"
    assert_failed(command.finish(), tmp_path, message)


@pytest.mark.slow
def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """No launcher, learner or worker outlives a killed supervisor."""
    command = start(tmp_path, "--sampler", "alternating", "--workers", 2, algo="a2c")
    command.wait_for((tmp_path / "checkpoint.pt").exists)
    # The launcher, two learners, each learner's fork server, and their workers.
    assert len(command.descendants()) == 1 + 2 + 2 + 2
    command.process.kill()
    assert command.finish().status == -signal.SIGKILL


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    """A first signal waits for a learner that hangs; a second one ends the run at once."""
    run = tmp_path / "run"
    command = start(run, "--how", "sampling", "--mark", run / "mark", "--sampler", "serial")
    command.wait_for((run / "mark").exists)
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    assert command.finish().status == 130
