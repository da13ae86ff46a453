"""Starts simulator processes: a process that has imported what they need forks them. Imports no torch.

A worker forked from it is up in milliseconds and shares the imported code and the prepared start states with the other
workers; a process started from nothing would take a fifth of a second and 30 MB. (The learner itself cannot fork: it
has threads.) Each request of the server's `Launcher` is answered. The end of file of its connection means that the
server has gone: then the workers that are left have EXIT_PATIENCE_S to end.
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
from typing import Any, Protocol

from accel_rl.envs.batch_simulator import BatchConfig, prepare
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.signals import leave_signals_to_parent

EXIT_PATIENCE_S = 2.0


class ProcessSetup(Protocol):
    """What a simulator process is told first: a WorkerSetup, or an agent's."""

    def run(self, control: "Connection[Any, Any]") -> None:
        """Does the process's work, in the process that was forked for it, until the server hangs up."""


@dataclass
class WorkerProcess:
    """A worker as the server sees it."""

    pid: int
    control: "Connection[Any, Any]"
    setup: Any


class Launcher:
    """Starts, watches and ends workers through the launching process: the server's side of it.

    fds: the file descriptors that workers inherit. Methods raise RunError when the launching process has ended."""

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
        self._is_prepared = False
        self._control.send(batch)

    def launch(self, setup: ProcessSetup) -> WorkerProcess:
        """Starts a worker, which builds its environments and then sends ("done", None).

        It first waits, however long that takes, until what all of them share is prepared: the native simulator may have
        to be compiled. Raises UsageError if it cannot be."""
        ours, theirs = Pipe()
        try:
            self._control.send(("launch", setup))
            send_handle(self._control, theirs.fileno(), self._popen.pid)
        except OSError:
            raise RunError(self._exit_message()) from None
        theirs.close()
        return WorkerProcess(self._answer(), ours, setup)

    def status(self, process: WorkerProcess, patience_s: float = 0.0) -> int | None:
        """Returns the worker's exit status (minus the number of the signal that killed it), or None if it still lives
        after patience_s."""
        status: int | None = self._ask("status", process.pid, patience_s)
        return status

    def describe_exit(self, process: WorkerProcess) -> str:
        """Returns how a worker that has ended did so, as in "was killed by SIGKILL"."""
        status = self.status(process, EXIT_PATIENCE_S)
        if status and status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def kill(self, process: WorkerProcess) -> None:
        """Kills the worker, which has ended when this returns."""
        if self.status(process) is None:
            os.kill(process.pid, signal.SIGKILL)
            self.status(process, EXIT_PATIENCE_S)

    def close(self, processes: list[WorkerProcess], patience_s: float) -> None:
        """Hangs up on all workers; those that have not ended after patience_s are killed."""
        for process in processes:
            process.control.close()
        if not self._is_prepared:  # interrupted: it may be compiling, and has no workers yet
            self._popen.kill()
        with contextlib.suppress(RunError):
            self._ask("close", patience_s)
        self._control.close()
        self._popen.wait()

    def _ask(self, *request: Any) -> Any:
        try:
            self._control.send(request)
        except OSError:
            raise RunError(self._exit_message()) from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._control.recv()
        except (EOFError, OSError):
            raise RunError(self._exit_message()) from None
        self._is_prepared = True
        if isinstance(answer, UsageError):
            raise answer
        return answer

    def _exit_message(self) -> str:
        return f"the process that starts the workers has ended with status {self._popen.wait()}"


def main() -> None:
    """Runs the launching process: forks workers on request until the server hangs up."""
    leave_signals_to_parent()
    faulthandler.enable()
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    children: dict[int, int | None] = {}  # pid -> exit status
    patience_s = EXIT_PATIENCE_S
    failure: UsageError | None = None
    with contextlib.suppress(EOFError, OSError):
        try:
            prepare(control.recv())
        except UsageError as error:
            failure = error
        gc.freeze()  # or a worker's garbage collection would copy the pages that it shares
        while True:
            request, *arguments = control.recv()
            if request == "launch":
                connection = recv_handle(control)
                if failure:
                    os.close(connection)
                    control.send(failure)
                    continue
                pid = os.fork()
                if pid == 0:
                    control.close()
                    arguments[0].run(Connection(connection))
                    return  # the rest of this process was the worker's
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
    # For the launching process and its workers alike: without taking the interpreter down piece by piece, which takes
    # a worker 50 ms and makes ale-py report everything that was shared as leaked.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
