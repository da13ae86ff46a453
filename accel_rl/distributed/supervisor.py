"""Supervises several learners on this machine, each in a separate process.

The supervisor passes on the request to stop, calls the user's callbacks, and ends all learners when one has failed."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.distributed.async_coordinator import Control
from accel_rl.distributed.learner_process import LearnerSetup
from accel_rl.distributed.roll_call import LostError
from accel_rl.distributed.sync_coordinator import check_loopback
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.limits import check_threads
from accel_rl.hardware.signals import StopSignal
from accel_rl.processes.fork_server import Child, ForkServer
from accel_rl.settings.resolve import Config
from accel_rl.training.build import build_store
from accel_rl.training.callbacks import Callbacks
from accel_rl.training.coordinator import Request

PROGRAM = "accel_rl.distributed.learner_process:main"  # each learner runs it
GRACE_S = 1.0  # time for a failure's cause to show: others may first report that a learner is gone
POLL_S = 0.2  # seconds between checks for a request to stop
# The main, console and roll-call threads, and three of Gloo for each of two groups. A learner without them is killed.
THREADS_OF_LEARNER = 9
EXIT_TIMEOUT_S = 5.0  # longest wait for the process of a learner that has finished
FAILURE_KINDS = ("died", "usage", "failed", "late", "lost")  # the first of these is the likeliest cause


@dataclass
class WatchedLearner:
    """A learner's process, as the supervisor sees it."""

    rank: int
    device: str
    process: Child
    is_ready: bool = False  # able to stop cleanly
    is_done: bool = False
    is_gone: bool = False
    failure: tuple[str, str] | None = None  # its kind and a description
    lost: LostError | None = None  # its error that names other learners

    def receive(self, control: Control, callbacks: Callbacks) -> None:
        """Receives the learner's next message, or notes that it is gone. The learner waits while a row is handled."""
        kind, content = self.process.receive(math.inf)
        if kind == "ready":
            self.is_ready = True
        elif kind == "row":
            callbacks(content)
            control.ask(callbacks.request)
            self.process.send("taken in")
        elif kind == "done":
            self.is_done = True
        elif kind == "died":
            self.is_gone = True
            if not self.is_done:
                self.failure = self.failure or (kind, content)
        else:
            self.failure = (kind, str(content))
            self.lost = content if kind == "lost" else None

    def error(self) -> Exception:
        """Returns the exception that describes the failure."""
        assert self.failure
        kind, text = self.failure
        separator = " " if kind in ("died", "late", "lost") else ":\n" if "\n" in text else ": "
        message = f"learner {self.rank} ({self.device}, process {self.process.pid}){separator}{text}"
        return (UsageError if kind == "usage" else RunError)(message)


def supervise(
    config: Config, folder: Path, state: dict[str, Any] | None, stop: StopSignal, show: bool, callbacks: Callbacks
) -> None:
    """Trains with a process for each learner until the run ends.

    Raises RunError or UsageError with the message of the learner that has failed, once all learners have ended."""
    with _started_learners(config, folder, state, show, bool(callbacks)) as (learners, control):
        _watch(learners, control, stop, callbacks, config.learners.learner_timeout_s)


@contextlib.contextmanager
def _started_learners(
    config: Config, folder: Path, state: dict[str, Any] | None, show: bool, has_callbacks: bool
) -> Iterator[tuple[list[WatchedLearner], Control]]:
    """Starts a process for each learner; yields these and the memory shared with them. Kills them at the end."""
    size = config.rank_info.size
    with contextlib.ExitStack() as resources:
        control = Control(size)
        resources.callback(control.memory.close)
        control.begin(state["steps"] if state else 0)
        setups = [
            LearnerSetup(
                config.of_learner(rank), folder, control.memory.fd, bool(state), show and rank == 0, has_callbacks
            )
            for rank in range(size)
        ]
        inherited: list[Any] = []  # ends of connections that only learners use
        if config.is_central:
            store = build_store(config, state)
            resources.callback(store.close)
            inherited += _connect_to_rank_0(setups)
            for setup in setups:
                setup.store = store.setup
        else:
            check_threads(size * THREADS_OF_LEARNER)
            check_loopback()
            meeting = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
            for setup in setups:
                setup.port = meeting.port
        fds = {fd for setup in setups for fd in setup.fds()}
        server = ForkServer(PROGRAM, fds, "the process that starts the learners {how}")
        resources.callback(server.close)
        for connection in inherited:  # else reading would not notice that the other end is gone
            connection.close()
        learners = [
            WatchedLearner(rank, setup.config.device, server.launch(setup, setup.fds()))
            for rank, setup in enumerate(setups)
        ]
        server.release_fds()
        yield learners, control


def _connect_to_rank_0(setups: list[LearnerSetup]) -> "list[Connection[Any, Any]]":
    """Opens a one-way connection to rank 0 for each other learner; returns all the ends."""
    ends = []
    for rank, setup in enumerate(setups[1:], start=1):
        reader, writer = Pipe(duplex=False)
        setup.to_rank_0, setups[0].from_learners[rank] = writer.fileno(), reader.fileno()
        ends += [reader, writer]
    return ends


def _watch(
    learners: list[WatchedLearner], control: Control, stop: StopSignal, callbacks: Callbacks, timeout_s: float
) -> None:
    """Waits until all learners are done. Raises the likeliest cause if some have failed."""
    ready_by = deadline = math.inf
    while not all(learner.is_done for learner in learners):
        if stop:
            control.ask(Request.STOP)
        connected = {learner.process.control: learner for learner in learners if not learner.is_gone}
        for connection in wait(list(connected), POLL_S):
            connected[connection].receive(control, callbacks)  # type: ignore[index]
        now = time.monotonic()
        if not stop.patient and all(learner.is_ready for learner in learners):
            stop.ready()
            ready_by = math.inf
            control.start()
        elif not stop.patient and any(learner.is_ready for learner in learners):
            ready_by = min(ready_by, now + timeout_s)
        failed = [learner for learner in learners if learner.failure]
        if now > ready_by:
            failed += _fail_late([each for each in learners if not (each.is_ready or each.failure)], timeout_s)
        if failed:
            deadline = min(deadline, now + GRACE_S)
            if now > deadline or len(failed) == len(learners):
                for lost in [learner.lost for learner in failed if learner.lost and "Timed out" in str(learner.lost)]:
                    silent = [each for each in learners if not each.failure]
                    failed += _fail_late([learners[rank] for rank in lost.absent] or silent, timeout_s)
                raise min(failed, key=lambda learner: FAILURE_KINDS.index(learner.failure[0])).error()  # type: ignore[index]
    for learner in learners:
        learner.process.wait(EXIT_TIMEOUT_S)


def _fail_late(learners: list[WatchedLearner], timeout_s: float) -> list[WatchedLearner]:
    """Marks learners that have neither ended nor failed as late, and returns them. A learner that arrived after it had
    lost the others also counts as late."""
    late = [each for each in learners if not (each.is_done or each.is_gone) or each.lost]
    for learner in late:
        learner.failure = ("late", f"has not answered for {timeout_s:g} s (--learner-timeout-s)")
    return late
