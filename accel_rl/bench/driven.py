"""Contestants in processes of their own, which are told by lines when to run. accel_rl/bench/drivers/turns.py holds the
other end of the protocol, and describes it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from accel_rl.bench.timing import Shares
from accel_rl.errors import RunError

BUILD_TIMEOUT_S = 300.0
TURN_TIMEOUT_S = 120.0  # beyond the seconds that were asked for: the iteration in progress is finished
END_TIMEOUT_S = 10.0
TAIL = 2000  # characters of what a process that failed has printed


class Driven:
    """A driver and all that it starts: one process group, which is stopped (SIGSTOP) whenever it is not its turn, so
    that frameworks whose processes go on by themselves cost nothing either.

    facts: what the driver says of itself. steps, updates: of all turns so far. Raises RunError, with the end of what
    it printed, if the driver ends or takes too long."""

    def __init__(self, name: str, command: Sequence[str]):
        self.name = name
        self.shares: Shares = {}
        self.steps = self.updates = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="accel_rl_bench_")
        self._log = Path(self._scratch.name) / "driver.log"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self._log.open("w") as log:
            # A group of its own in our session: should we die while it is stopped, the kernel hangs it up (SIGHUP).
            self._driver = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._scratch.name,
                env=environment,
                process_group=0,
            )
        self._unread = b""
        try:
            self.facts: dict[str, Any] = self._answer(BUILD_TIMEOUT_S)["ready"]
            self._stop()
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> float:
        """Steps/s by the driver's own clock, of the iterations that were finished."""
        assert self._driver.stdin
        self._signal(signal.SIGCONT)
        try:
            self._driver.stdin.write(f"run {seconds}\n".encode())
        except BrokenPipeError:
            raise self._failure("has ended") from None
        answer = self._answer(seconds + TURN_TIMEOUT_S)
        self._stop()
        self.steps += answer["steps"]
        self.updates += answer["updates"]
        return float(answer["steps"] / answer["seconds"])

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line. Its pipe does not tell that the driver has ended if others hold it, too."""
        assert self._driver.stdout
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if select.select([self._driver.stdout], [], [], 0.5)[0]:
                got = os.read(self._driver.stdout.fileno(), 65536)
                if not got:
                    raise self._failure("has ended")
                self._unread += got
            elif self._driver.poll() is not None:
                raise self._failure("has ended")
            elif time.monotonic() > deadline:
                raise self._failure(f"has not answered for {timeout_s:.0f} s")
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> RunError:
        with contextlib.suppress(subprocess.TimeoutExpired):  # if it is about to end, all shall be printed first
            self._driver.wait(2.0)
        printed = self._log.read_text(errors="replace")[-TAIL:].strip()
        return RunError(f"the driver of {self.name} {what}; it printed:\n{printed}")

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._driver.pid, number)
        except ProcessLookupError:
            raise self._failure("has ended") from None

    def _stop(self) -> None:
        """Stops the group, and waits until the last of it has stopped."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + END_TIMEOUT_S
        while any(_is_running(process) for process in self._processes()):
            if time.monotonic() > deadline:
                raise self._failure("can't be stopped")
            time.sleep(0.001)

    def close(self) -> None:
        """Ends the group, and waits until it is gone."""
        # The drivers' processes die of SIGTERM; but multiprocessing's resource tracker ignores it, removes what the
        # others have left in shared memory, and ends then.
        for number in (signal.SIGTERM, signal.SIGCONT):
            _signal_group(self._driver.pid, number)
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._driver.poll() is None or any(_is_alive(process) for process in self._processes()):
            if time.monotonic() > deadline:
                _signal_group(self._driver.pid, signal.SIGKILL)
                break
            time.sleep(0.02)
        self._driver.wait()
        for pipe in (self._driver.stdin, self._driver.stdout):
            assert pipe
            pipe.close()
        self._scratch.cleanup()

    def _processes(self) -> list[psutil.Process]:
        """All in the group: also those whose parents have ended."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(pid) == self._driver.pid:
                    found.append(psutil.Process(pid))
        return found


def driver_command(python: Path | str, driver: str, settings: dict[str, Any]) -> list[str]:
    """settings: options of the driver, by name."""
    script = Path(__file__).parent / "drivers" / f"{driver}.py"
    return [str(python), str(script), *(f"--{name}={value}" for name, value in settings.items())]


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


def _is_alive(process: psutil.Process) -> bool:
    return _status(process) != psutil.STATUS_ZOMBIE


def _is_running(process: psutil.Process) -> bool:
    return _status(process) not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
