"""Real `accel-rl` processes: started, watched, and looked for when they should be gone."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MARKER = "ACCEL_RL_TEST"  # an environment variable that every descendant inherits
TINY = ["--envs", 4, "--workers", 2, "--eval-interval-steps", 0, "--no-tensorboard", "--device", "cpu"]
TINY += ["--sampling-threads", 1, "--learning-threads", 1]  # the machine may be busy


@dataclass
class Result:
    status: int
    out: str
    err: str

    def assert_one_line(self, status: int) -> None:
        assert self.status == status, self.err
        assert self.err.count("\n") == 1 and self.err.startswith("accel-rl: "), self.err


class Command:
    """`python -m accel_rl ...`, or another script, under way."""

    def __init__(
        self,
        *arguments: Any,
        cwd: Path | None = None,
        script: Path | None = None,
        environment: dict[str, str] | None = None,
    ):
        self._marker = uuid.uuid4().hex
        self._shm = _shm()
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
        )

    def descendants(self) -> list[psutil.Process]:
        """Whatever this command has started and is still alive, its parent dead or not."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self.process.pid and process.environ().get(MARKER) == self._marker:
                    found.append(process)
        return found

    def learners(self) -> list[psutil.Process]:
        """The learners' processes where there are several, by rank."""
        found = [
            process for process in self.descendants() if "accel_rl.distributed.learner_process" in process.cmdline()
        ]
        return sorted(found, key=lambda process: process.create_time())

    def workers(self) -> list[psutil.Process]:
        """The simulator processes: all that the launching processes have forked."""
        launchers = [
            process for process in self.descendants() if "accel_rl.samplers.worker_launcher" in process.cmdline()
        ]
        return [worker for worker in launchers if worker.ppid() in [launcher.pid for launcher in launchers]]

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 40.0) -> Any:
        """What condition() says as soon as it is true. Fails when the command ends before."""
        deadline = time.monotonic() + timeout_s
        while not (answer := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._kill()
                raise AssertionError(f"waited in vain; stderr:\n{self._text(self._err)}")
            time.sleep(0.02)
        return answer

    def finish(self, within_s: float = 40.0) -> Result:
        """The command's end, which must come in time and leave no process and no shared memory behind."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._kill()
            raise AssertionError(f"not over after {within_s} s; stderr:\n{self._text(self._err)}") from None
        deadline = time.monotonic() + 2.0
        while (left := self.descendants()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._kill()
        assert not left, f"left behind: {left}"
        assert _shm() <= self._shm, f"left behind in /dev/shm: {_shm() - self._shm}"
        return Result(status, self._text(self._out), self._text(self._err))

    def _text(self, file: Any) -> str:
        file.seek(0)
        return str(file.read())

    def _kill(self) -> None:
        for process in [self.process, *self.descendants()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def run(*arguments: Any, cwd: Path | None = None, script: Path | None = None, within_s: float = 60.0) -> Result:
    return Command(*arguments, cwd=cwd, script=script).finish(within_s)


def _shm() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
