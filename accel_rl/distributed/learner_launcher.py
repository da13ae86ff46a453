"""Starts learner processes: one process that has imported what they need, torch included, forks them all.

A forked learner is up in milliseconds, where one started from scratch imports for 2.5 s, all of them at the same time.
The supervisor cannot fork them itself: it has threads, and perhaps CUDA. So the launching process runs nothing but
imports, and asserts before it forks that it has one thread and no CUDA context.

(multiprocessing's forkserver would import the user's `__main__` again in each learner, leave its named socket behind
when it is killed, and its children outlive both it and the process that asked for them.)

Nothing outlives the supervisor, however that ends: the kernel kills the launching process with it, and the learners
with the launching process.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

from accel_rl.errors import RunError
from accel_rl.hardware.signals import leave_signals_to_parent

POLL_S = 0.002
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class LearnerLauncher:
    """Starts the launching process, from the supervisor; `launch` then returns the learners.

    program: "module:function", which each learner calls with the first of its file descriptors. fds: per learner, all
    descriptors it inherits, under the same numbers."""

    def __init__(self, program: str, fds: Sequence[Sequence[int]]):
        self._control, theirs = Pipe()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid()), str(theirs.fileno()), program, json.dumps(fds)],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *{fd for own in fds for fd in own}],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            process_group=0,  # a terminal's Ctrl-C is for the supervisor only
        )
        theirs.close()
        self._has_launched = False

    def launch(self) -> "list[LearnerProcess]":
        """Waits until all learners are forked. Raises RunError if the launching process has ended."""
        pids = self._answer()
        self._has_launched = True
        return [LearnerProcess(pid, self) for pid in pids]

    def wait(self, pid: int, timeout_s: float | None = None) -> int | None:
        """Returns a learner's exit status, minus the signal that killed it; None if it is alive after the timeout.

        Raises RunError if the launching process has ended: then the kernel has killed the learners as well."""
        try:
            self._control.send((pid, timeout_s))
        except OSError:
            raise RunError(self._end()) from None
        status: int | None = self._answer()
        return status

    def close(self) -> None:
        """Kills the learners that are left; all of them are gone when this returns."""
        self._control.close()
        if not self._has_launched:  # nobody needs to wait for its imports
            self._popen.kill()
        self._popen.wait()

    def _answer(self) -> Any:
        try:
            return self._control.recv()
        except (EOFError, OSError):
            raise RunError(self._end()) from None

    def _end(self) -> str:
        return f"the process that starts the learners {describe_end(self._popen.wait())}"


@dataclass(frozen=True)
class LearnerProcess:
    """A learner's process, as the supervisor sees it."""

    pid: int
    launcher: LearnerLauncher

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Returns the exit status, minus the signal that killed the process; None if it is alive after the timeout."""
        return self.launcher.wait(self.pid, timeout_s)


def describe_end(status: int) -> str:
    """Describes how a process has ended, from its exit status or minus the signal that killed it."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"


# ---- the launching process ----


def main() -> None:
    parent, control_fd = int(sys.argv[1]), int(sys.argv[2])
    program, fds = sys.argv[3], json.loads(sys.argv[4])
    end_with_parent(parent)
    module, name = program.split(":")
    with _one_blas_thread():
        learn = getattr(importlib.import_module(module), name)
    assert_safe_to_fork()
    gc.freeze()  # so that a learner's garbage collection does not copy what all of them share
    children: dict[int, int | None] = {}  # pid -> exit status
    launcher = os.getpid()
    for own in fds:
        pid = os.fork()
        if pid == 0:
            end_with_parent(launcher)
            close_all({control_fd, *(fd for each in fds for fd in each)} - {*own})
            seed_numpy()
            learn(own[0])  # the rest of this process is the learner's
            return
        children[pid] = None
    # Else no learner would notice that the other end of its connection to another one is gone.
    close_all({fd for own in fds for fd in own})
    _serve(Connection(control_fd), children)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process once its parent has ended, and leaves signals to the parent."""
    leave_signals_to_parent()
    if os.getppid() != parent:  # it has ended before this process could ask to end with it
        os._exit(0)


def assert_safe_to_fork() -> None:
    """Raises RuntimeError if this process has threads, or a CUDA context: a forked child would hang or crash."""
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
    if threads > 1:
        raise RuntimeError(f"learners cannot be forked: importing what they need has started {threads - 1} threads")
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        raise RuntimeError("learners cannot be forked: importing what they need has initialized CUDA")


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Keeps NumPy's OpenBLAS from starting threads when it is loaded. (Learners compute with torch, and set its number
    of threads later.)"""
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[BLAS_THREADS]
        if before is not None:
            os.environ[BLAS_THREADS] = before


def close_all(fds: set[int]) -> None:
    """Closes file descriptors."""
    for fd in fds:
        os.close(fd)


def seed_numpy() -> None:
    """Gives a forked process its own global NumPy generator, as a process started from scratch has."""
    import numpy as np

    np.random.seed()


def _serve(control: "Connection[Any, Any]", children: dict[int, int | None]) -> None:
    """Tells the supervisor how learners end; kills those that are left once the supervisor hangs up."""
    with contextlib.suppress(EOFError, OSError):
        control.send(list(children))
        while True:
            pid, timeout_s = control.recv()
            control.send(_wait(children, pid, timeout_s))
    for pid, status in children.items():
        if status is None:
            os.kill(pid, signal.SIGKILL)  # still a child of this process, if only a zombie: its pid is not reused
    for pid in children:
        _wait(children, pid, None)


def _wait(children: dict[int, int | None], pid: int, timeout_s: float | None) -> int | None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while children[pid] is None:
        exited, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if exited:
            children[pid] = os.waitstatus_to_exitcode(status)
        elif deadline is not None and time.monotonic() >= deadline:
            break
        else:
            time.sleep(POLL_S)
    return children[pid]


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking torch down piece by piece would take seconds
