"""Starts simulator processes: a process that has imported what they need, and forks them. Imports no torch.

A worker forked from here is up in milliseconds and shares the imported code and the prepared start states with the
others, where a process of its own start would take a fifth of a second and 30 MB. (The learner itself can't fork: it
has threads.) Each request of the server's `Launcher` is answered; the end of file of its connection says that the
server is gone: then whatever workers are left have EXIT_PATIENCE_S to go.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from accel_rl.envs.batch_simulator import BatchConfig, prepare
from accel_rl.errors import RunError
from accel_rl.hardware.signals import leave_signals_to_parent
from accel_rl.samplers.worker import WorkerSetup, work

EXIT_PATIENCE_S = 2.0


@dataclass
class WorkerProcess:
    """A worker, as the server sees it."""

    pid: int
    control: "Connection[Any, Any]"
    setup: WorkerSetup


class Launcher:
    """The server's side. fds: what workers inherit. Raises RunError when the launching process has come to an end."""

    def __init__(self, batch: BatchConfig, fds: list[int]):
        self._control, theirs = Pipe()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "accel_rl.samplers.worker_launcher", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *fds],
            env=environment,
            process_group=0,  # a terminal's Ctrl-C is for this process only
        )
        theirs.close()
        self._control.send(batch)

    def launch(self, setup: WorkerSetup) -> WorkerProcess:
        ours, theirs = Pipe()
        try:
            self._control.send(("launch", setup))
            send_handle(self._control, theirs.fileno(), self._popen.pid)
        except OSError:
            raise RunError(self._gone()) from None
        theirs.close()
        return WorkerProcess(self._answer(), ours, setup)

    def status(self, process: WorkerProcess, patience_s: float = 0.0) -> int | None:
        """The status that the worker has exited with, minus the signal that killed it; None while it lives."""
        status: int | None = self._ask("status", process.pid, patience_s)
        return status

    def kill(self, process: WorkerProcess) -> None:
        """Ends the worker; it is gone when this returns."""
        if self.status(process) is None:
            os.kill(process.pid, signal.SIGKILL)
            self.status(process, EXIT_PATIENCE_S)

    def close(self, processes: list[WorkerProcess], patience_s: float) -> None:
        """Hangs up on all workers; those that have not left after that time are killed."""
        for process in processes:
            process.control.close()
        with contextlib.suppress(RunError):
            self._ask("close", patience_s)
        self._control.close()
        self._popen.wait()

    def _ask(self, *request: Any) -> Any:
        try:
            self._control.send(request)
        except OSError:
            raise RunError(self._gone()) from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            return self._control.recv()
        except (EOFError, OSError):
            raise RunError(self._gone()) from None

    def _gone(self) -> str:
        return f"the process that starts the workers has ended with status {self._popen.wait()}"


def main() -> None:
    leave_signals_to_parent()
    faulthandler.enable()
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    children: dict[int, int | None] = {}  # pid -> exit status
    patience_s = EXIT_PATIENCE_S
    with contextlib.suppress(EOFError, OSError):
        prepare(control.recv())
        gc.freeze()  # so that a worker's garbage collection does not copy what it shares
        while True:
            request, *arguments = control.recv()
            if request == "launch":
                connection = recv_handle(control)
                pid = os.fork()
                if pid == 0:
                    control.close()
                    return work(arguments[0], Connection(connection))  # the rest of this process is the worker's
                os.close(connection)
                children[pid] = None
                control.send(pid)
            elif request == "status":
                control.send(_status(children, *arguments))
            else:
                (patience_s,) = arguments
                break
    deadline = time.monotonic() + patience_s
    for pid in children:
        if _status(children, pid, deadline - time.monotonic()) is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        control.send("closed")


def _status(children: dict[int, int | None], pid: int, patience_s: float) -> int | None:
    deadline = time.monotonic() + patience_s
    while children[pid] is None:
        exited, status = os.waitpid(pid, os.WNOHANG)
        if exited:
            children[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() < deadline:
            time.sleep(0.002)
        else:
            break
    return children[pid]


if __name__ == "__main__":
    main()
    # For the launcher and its workers alike: in good order, but without taking the interpreter down piece by piece,
    # which takes a worker 50 ms and makes ale-py report at length whatever was shared as leaked.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
