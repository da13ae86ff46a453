"""Real `accel-rl` processes: started, watched, and checked to be gone."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil

MARKER = "ACCEL_RL_TEST"  # an environment variable that every descendant inherits
TINY = ["--envs", 4, "--workers", 2, "--eval-interval-steps", 0, "--no-tensorboard", "--no-report", "--device", "cpu"]
TINY += ["--sampling-threads", 1, "--learning-threads", 1]  # the machine may be busy
SIMULATORS = "accel_rl.envs.batches.batch_simulator:prepare"  # prepares the process that starts simulators

TIMEOUT_S = 60.0  # the limit of every wait; nothing takes that long


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Returns settings as flags of the command line."""
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        flags += [f"--{flag if value else f'no-{flag}'}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return flags


def words_of(process: psutil.Process) -> list[str]:
    """Returns the words of a process's command; none if it has ended or is another user's."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@dataclass
class Result:
    """A command's exit status, stdout and stderr."""

    status: int
    out: str
    err: str

    def assert_one_line(self, status: int) -> None:
        """Checks the exit status, and that the error is one line without a traceback."""
        assert self.status == status, self.err
        assert self.err.count("\n") == 1 and self.err.startswith("accel-rl: "), self.err


class Command:
    """Runs `python -m accel_rl ...`, or another script, in a separate process.

    conftest.py kills commands that a failed test leaves running."""

    unfinished: ClassVar[list["Command"]] = []

    def __init__(
        self,
        *arguments: Any,
        cwd: Path | None = None,
        script: Path | None = None,
        environment: dict[str, str] | None = None,
        user: int | None = None,
        preexec_fn: Callable[[], object] | None = None,
    ):
        self.unfinished.append(self)
        self._marker = uuid.uuid4().hex
        self._shm = _shm()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell's background job passes this on.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        command = [sys.executable, *([script] if script else ["-m", "accel_rl"]), *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            cwd=cwd,
            env={**os.environ, **(environment or {}), MARKER: self._marker},
            process_group=0,
            user=user,
            preexec_fn=preexec_fn,
        )

    def descendants(self) -> list[psutil.Process]:
        """Returns all living processes that this command has started, even if their parent is dead."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self.process.pid and process.environ().get(MARKER) == self._marker:
                    found.append(process)
        return found

    def learners(self) -> list[psutil.Process]:
        """Returns the processes of several learners, by rank."""
        return sorted(self._forked_by("accel_rl.distributed.learner_process:main"), key=lambda process: process.pid)

    def workers(self) -> list[psutil.Process]:
        """Returns the simulator processes."""
        return self._forked_by(SIMULATORS)

    def _forked_by(self, word: str) -> list[psutil.Process]:
        """Returns the processes forked by those with this word in their commands."""
        found = [process for process in self.descendants() if word in words_of(process)]
        return [process for process in found if process.ppid() in [launcher.pid for launcher in found]]

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Waits until condition() is true, and returns its value. Fails if the command ends first."""
        deadline = time.monotonic() + timeout_s
        while not (answer := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"what was waited for has not happened; stderr:\n{self._text(self._err)}")
            time.sleep(0.02)
        return answer

    def finish(self, within_s: float = TIMEOUT_S) -> Result:
        """Waits for the command's end; checks that it leaves no process and no shared memory behind."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not finished after {within_s} s; stderr:\n{self._text(self._err)}") from None
        deadline = time.monotonic() + TIMEOUT_S
        # Another test's engine of a 3-D game has names in shared memory while it starts.
        while ((left := self.descendants()) or not _shm() <= self._shm) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill()
        assert not left, f"left behind: {left}"
        assert _shm() <= self._shm, f"left behind in /dev/shm: {_shm() - self._shm}"
        with self._out, self._err:
            return Result(status, self._text(self._out), self._text(self._err))

    def _text(self, file: Any) -> str:
        file.seek(0)
        return str(file.read())

    def kill(self) -> None:
        """Ends the command and everything that it has started."""
        if self in self.unfinished:
            self.unfinished.remove(self)
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()


def run(*arguments: Any, cwd: Path | None = None, script: Path | None = None, within_s: float = TIMEOUT_S) -> Result:
    """Runs a command to its end."""
    return Command(*arguments, cwd=cwd, script=script).finish(within_s)


def _shm() -> set[str]:
    """Returns the names of shared-memory files; folders there belong to other programs."""
    return {path.name for path in Path("/dev/shm").glob("*") if path.is_file()}
