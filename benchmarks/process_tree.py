"""Runs a program whose processes are all stopped (SIGSTOP) between its turns."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from accel_rl.errors import RunError
from accel_rl.processes.child import stop_with_parent

STOP_TIMEOUT_S = 60.0
TERMINATE_TIMEOUT_S = 10.0
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)  # to be reaped; being reaped
LOG_TAIL = 2000  # characters of a failed program's output


class ProcessTree:
    """A program with all processes that it starts, in its own process group and an empty folder.

    A stopped program uses no CPU time, even if it has processes in the background. If this process ends without
    closing it, the program gets SIGTERM, and is continued if it is stopped. Standard error goes to a log file.

    name: the program's name in errors. stdin, stdout: as for subprocess.Popen."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
    ):
        self.name = name
        self._scratch = tempfile.TemporaryDirectory(prefix="accel_rl_bench_")
        self.folder = Path(self._scratch.name)
        self._log = self.folder / "program.log"
        self._paused: list[psutil.Process] = []
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                cwd=self.folder,
                env=environment,
                process_group=0,
                preexec_fn=partial(_begin, os.getpid()),
            )

    def pause(self) -> None:
        """Stops all processes; returns once the last one has stopped. Raises RunError if the program has ended."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        _signal(self._paused, signal.SIGSTOP)  # those of the last pause first: finding others takes milliseconds
        while True:
            self._paused = self.processes()
            running = [process for process in self._paused if _is_running(process)]
            if not running:
                break
            if time.monotonic() > deadline:
                raise self.error("cannot be stopped")
            _signal(running, signal.SIGSTOP)
            time.sleep(0.001)
        if self.process.poll() is not None:
            raise self.error("has ended")

    def resume(self) -> None:
        """Lets all processes continue. Raises RunError if the program has ended."""
        if self.process.poll() is not None:
            raise self.error("has ended")
        _signal(self._paused, signal.SIGCONT)

    def processes(self) -> list[psutil.Process]:
        """Returns the program's living processes: its group, also orphans, and all their descendants."""
        alive: dict[int, psutil.Process] = {}
        children: dict[int, list[int]] = {}
        pending: list[int] = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if is_alive(process):
                    alive[process.pid] = process
                    children.setdefault(process.ppid(), []).append(process.pid)
                    if os.getpgid(process.pid) == self.process.pid:
                        pending.append(process.pid)
        found: dict[int, psutil.Process] = {}
        while pending:
            if (pid := pending.pop()) in alive:
                found[pid] = alive.pop(pid)
                pending += children.get(pid, [])
        return [*found.values()]

    def error(self, what: str) -> RunError:
        """Returns an error with this message and the end of the program's output."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # a program that is ending prints its traceback first
            self.process.wait(2.0)
        printed = self._log.read_text(errors="replace")[-LOG_TAIL:].strip()
        return RunError(f"{self.name} {what}; it printed:\n{printed}")

    def close(self) -> None:
        """Ends all processes; returns once they are gone."""
        # SIGTERM first: multiprocessing's resource tracker ignores it, removes the shared memory that other processes
        # have left, and then ends.
        processes = self.processes()
        for number in (signal.SIGTERM, signal.SIGCONT):
            _signal(processes, number)
        deadline = time.monotonic() + TERMINATE_TIMEOUT_S
        # Wait for the processes found at first: once its parent has ended, a process in another group cannot be found.
        while (alive := _still_alive({*processes, *self.processes()})) or self.process.poll() is None:
            if time.monotonic() > deadline:
                _signal(alive, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self._scratch.cleanup()

    def kill(self) -> None:
        """Kills all processes and closes, for programs that would save their state on SIGTERM."""
        self.process.kill()
        _signal(self.processes(), signal.SIGKILL)
        self.close()


def _begin(parent: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, but it must end a stopped group without a parent
    stop_with_parent(parent)


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process is alive; one that waits to be reaped is not."""
    return _status(process) not in ENDED


def _still_alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and is_alive(process)]


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


def _is_running(process: psutil.Process) -> bool:
    return _status(process) not in (*ENDED, psutil.STATUS_STOPPED)
