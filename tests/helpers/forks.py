"""Processes that are forked from the test process, which has imported everything, instead of being started anew.

Each saves a third of a second of imports. A fork keeps none of the tests' descriptors, log handlers or environment."""

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accel_rl.envs import probe
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.processes import fork_server, spawning
from tests.helpers.processes import SIMULATORS


class ForkedProcess:
    """Runs main() where subprocess.Popen would run `python -P -m module ...`; has the interface that is used here."""

    def __init__(
        self,
        main: Callable[[], None],
        command: Sequence[str],
        *,
        stdin: int,
        pass_fds: Sequence[int],
        env: dict[str, str],
        process_group: int,
        stdout: int | None = None,
    ):
        self.returncode: int | None = None
        self.stdout, written = os.pipe() if stdout == subprocess.PIPE else (-1, 1)
        sys.stdout.flush()
        sys.stderr.flush()
        read, self.stdin = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # os.fork warns of threads; no child needs them
            self.pid = os.fork()
        if not self.pid:
            os.dup2(read, 0)
            os.dup2(written, 1)
            os.setpgid(0, process_group)
            _run(main, command[4:], {0, 1, 2, *pass_fds}, env)
        os.close(read)
        if stdout is not None:
            os.close(written)

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def communicate(self, data: bytes, timeout: float) -> tuple[None, None]:
        """Writes to its stdin and waits for its end. Raises subprocess.TimeoutExpired."""
        with os.fdopen(self.stdin, "wb") as stdin:
            stdin.write(data)
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("", timeout)
            time.sleep(0.001)
        return None, None

    def poll(self) -> int | None:
        """Returns the exit status, the negative number of the signal that killed it, or None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """Waits for its end; returns the exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        """Kills it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run(main: Callable[[], None], arguments: Sequence[str], fds: set[int], env: dict[str, str]) -> None:
    """Runs main() as a new process would, and ends this one."""
    status = 1
    try:
        gc.freeze()  # garbage must not close descriptors that it no longer owns
        for fd in {int(name) for name in os.listdir("/dev/fd")} - fds:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)
        sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), sys.__stdout__, sys.__stderr__  # noqa: SIM115
        sys.argv[1:] = arguments
        os.environ.clear()
        os.environ.update(env)
        for logger in (logging.getLogger(), logging.getLogger("accel_rl")):
            logger.handlers.clear()
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def forking(word: str, main: Callable[[], None]) -> Any:
    """Returns a substitute for the module subprocess: processes with this word in their command run main()."""

    def popen(command: Sequence[str], **options: Any) -> Any:
        return ForkedProcess(main, command, **options) if word in command else subprocess.Popen(command, **options)

    return type("subprocess", (), {"Popen": staticmethod(popen), "PIPE": subprocess.PIPE})


FORKING_LAUNCHER = forking(SIMULATORS, fork_server.main)
_FORKING_PROBE = forking(probe.__name__, probe._main)


def probe_spec(env: EnvConfig, timeout_s: float = 60.0, is_timed: bool = False) -> EnvSpec:
    """Runs `accel_rl.envs.probe.probe_spec` with a fork of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawning, "subprocess", _FORKING_PROBE)
        return probe.probe_spec(env, timeout_s, is_timed)
