"""Several learners on this machine: a process for each, and this one, which watches over them.

It passes on the wish to stop, and ends all of them when one has failed; when it is killed, the kernel kills them."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.distributed.async_coordinator import Control
from accel_rl.distributed.learner_process import LearnerSetup
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.signals import StopSignal
from accel_rl.training.build import build_store
from accel_rl.training.resolve import Config

GRACE_S = 1.0  # after a failure, for its cause to show: others may only notice that somebody is gone
LOOK_S = 0.2  # between two looks at the wish to stop
KINDS = ("died", "usage", "failed", "lost")  # of trouble: the first of these is the likeliest cause


@dataclass
class Learner:
    """A learner's process, as the supervisor sees it."""

    rank: int
    device: str
    process: "subprocess.Popen[bytes]"
    control: "Connection[Any, Any]"
    is_ready: bool = False  # to stop in good order
    is_done: bool = False
    is_gone: bool = False
    trouble: tuple[str, str] | None = None  # its kind, and what happened

    def hear(self) -> None:
        """Takes note of what it says, or that it is gone."""
        try:
            kind, text = self.control.recv()
        except (EOFError, OSError):
            self.is_gone = True
            status = self.process.wait()
            if not (self.is_done or self.trouble):
                how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
                self.trouble = ("died", how)
            return
        if kind == "ready":
            self.is_ready = True
        elif kind == "done":
            self.is_done = True
        else:
            self.trouble = (kind, text)

    def error(self) -> Exception:
        assert self.trouble
        kind, text = self.trouble
        separator = " " if kind == "died" else ":\n" if "\n" in text else ": "
        message = f"learner {self.rank} ({self.device}, process {self.process.pid}){separator}{text}"
        return (UsageError if kind == "usage" else RunError)(message)


def supervise(config: Config, folder: Path, state: dict[str, Any] | None, stop: StopSignal, show: bool) -> None:
    """Trains with a process for each learner, to the end of the run.

    Raises RunError, or UsageError, with what the learner says that has failed; all others are gone then."""
    with started(config, folder, state, show) as (learners, control):
        _watch(learners, control, stop)


@contextlib.contextmanager
def started(
    config: Config,
    folder: Path,
    state: dict[str, Any] | None,
    show: bool,
    program: str = "accel_rl.distributed.learner_process",
) -> Iterator[tuple[list[Learner], Control]]:
    """A process for each learner of the run, and what they share; at the end they are killed.

    program: the module that each runs."""
    size, learners = config.rank_info.size, list[Learner]()
    with contextlib.ExitStack() as shared:
        control = Control(size)
        shared.callback(control.memory.close)
        control.begin(state["steps"] if state else 0)
        setups = [
            LearnerSetup(config.of_learner(rank), folder, control.memory.fd, bool(state), show and rank == 0)
            for rank in range(size)
        ]
        pipes: list[Any] = []
        if config.is_central:
            store = build_store(config, state)
            shared.callback(store.close)
            for rank, setup in enumerate(setups):
                setup.store = store.setup
                if rank:
                    reader, writer = Pipe(duplex=False)
                    setup.to_first, setups[0].from_others[rank] = writer.fileno(), reader.fileno()
                    pipes += [reader, writer]
        else:
            meeting = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
            for setup in setups:
                setup.port = meeting.port
        try:
            for setup in setups:
                learners.append(_start(setup, program))
            for pipe in pipes:  # else nobody would notice that the other end is gone
                pipe.close()
            yield learners, control
        finally:
            for learner in learners:
                learner.process.kill()
            for learner in learners:
                learner.process.wait()


def _start(setup: LearnerSetup, program: str) -> Learner:
    ours, theirs = Pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", program, str(theirs.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno(), *setup.fds()],
        env=environment,
        process_group=0,  # a terminal's Ctrl-C is for this process only
    )
    theirs.close()
    ours.send_bytes(pickle.dumps(setup))
    return Learner(setup.config.rank_info.rank, setup.config.device, process, ours)


def _watch(learners: list[Learner], control: Control, stop: StopSignal) -> None:
    """Until all are done. Raises what has gone wrong."""
    deadline = float("inf")
    while not all(learner.is_done for learner in learners):
        if stop:
            control.request_stop()
        talking = {learner.control: learner for learner in learners if not learner.is_gone}
        for connection in wait(list(talking), LOOK_S):
            talking[connection].hear()  # type: ignore[index]
        if not stop.patient and all(learner.is_ready for learner in learners):
            stop.patient = True
            control.start()
        troubled = [learner for learner in learners if learner.trouble]
        if troubled:
            deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline or len(troubled) == len(learners):
                causes = sorted(troubled, key=lambda learner: KINDS.index(learner.trouble[0]))  # type: ignore[index]
                raise causes[0].error()
    for learner in learners:
        with contextlib.suppress(subprocess.TimeoutExpired):
            learner.process.wait(5)
