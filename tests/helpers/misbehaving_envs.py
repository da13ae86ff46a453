"""Environments that misbehave at one step, and behave well until then. Nothing here imports torch."""

import contextlib
import itertools
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from tests.helpers.toy_envs import Counting

FLOOD = "all work and no play makes a dull log\n" * 30_000  # 1 MB


class Misbehaving(Counting):
    """Counting that does the deed of this name at step 5 of its first game, or when it is closed after a step."""

    def __init__(self, deed: str):
        super().__init__(lengths=[0])
        self._deed = deed
        self._buffer: Any = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._deed == "alias":
            self._buffer = observation if self._buffer is None else self._buffer
            self._buffer[:], observation = observation, self._buffer
        elif self.steps == 5 and self._deed in DEEDS:
            DEEDS[self._deed]()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        if (self.steps or self._deed == "never closes") and self._deed in AT_CLOSE:
            AT_CLOSE[self._deed]()


class WrongWordsError(ValueError):
    """An error that can neither be printed nor pickled."""

    def __init__(self) -> None:
        super().__init__("broken on purpose: \udcff\0")
        self.lock = threading.Lock()


def _start_threads() -> None:
    for is_daemon in (True, False):
        threading.Thread(target=time.sleep, args=(3600,), daemon=is_daemon).start()


def _flood() -> None:
    print(FLOOD, flush=True)
    print(FLOOD, file=sys.stderr, flush=True)
    os.write(1, FLOOD.encode())


def _move_out() -> None:
    os.chdir("/")
    os.umask(0o777)
    os.environ.clear()


def _signal_itself() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGWINCH):
        os.kill(os.getpid(), number)
        os.killpg(0, number)


def _fork(goes_on: bool) -> Callable[[], None]:
    def fork() -> None:
        if os.fork() == 0 and not goes_on:
            time.sleep(3600)

    return fork


def _take_addresses() -> None:
    limit = psutil.Process().memory_info().vms + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    blocks = []
    for size in (2**25, 2**15, 2**8, 2**4):  # until nothing at all is left
        with contextlib.suppress(MemoryError):
            while True:
                blocks.append(bytes([1]) * size)
    raise MemoryError


def _take_memory() -> None:
    _ = [bytes([1]) * 2**25 for _ in itertools.count()]


def _raise(error: Any) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def _kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


AT_CLOSE: dict[str, Callable[[], object]] = {
    "close fails": _raise(ValueError("broken on purpose")),
    "never closes": _raise(ValueError("broken on purpose")),
    "close exits": lambda: os._exit(7),
}
DEEDS: dict[str, Callable[[], object]] = {
    "threads": _start_threads,
    "flood": _flood,
    "closed streams": lambda: os.closerange(0, 3),
    "moves out": _move_out,
    "signals": _signal_itself,
    "forks": _fork(goes_on=False),
    "one CPU": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "input": lambda: input("which way? "),
    "addresses": _take_addresses,
    "memory leak": _take_memory,  # only where it is limited
    "words": _raise(WrongWordsError()),
    "exit": lambda: sys.exit(7),
    "interrupt": _raise(KeyboardInterrupt),
    "all closed": lambda: os.closerange(3, 1000),
    "stop": _kill(signal.SIGSTOP),
    "the group": lambda: os.killpg(0, signal.SIGKILL),
    "forks, and goes on": _fork(goes_on=True),
}


class Talking(Counting):
    """Counting that writes to stdout and stderr when it is built, at each step and when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        _talk()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        _talk()
        return super().step(action)

    def close(self) -> None:
        _talk()


def _talk() -> None:
    print("a line", flush=True)
    print("a line", file=sys.stderr)
