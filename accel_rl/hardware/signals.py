"""SIGINT and SIGTERM: the first one asks, the second one insists. Child processes leave it to their parent."""

import ctypes
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any


class StopSignal:
    """While entered: `received` is the signal that asked the run to stop, or None.

    Before the run can stop in good order (`patient` is False) a signal raises KeyboardInterrupt (SIGINT) or SystemExit
    (SIGTERM) at once, and so does a second one at any time. Does nothing outside the main thread, where Python lets
    nobody handle signals.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.patient = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def ready(self) -> None:
        """The run can stop in good order from now on."""
        self.patient = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        insisted = self.received is not None
        self.received = number
        if insisted or not self.patient:
            self.leave()

    def leave(self) -> None:
        """Raises what the received signal amounts to, if there was one."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def __bool__(self) -> bool:
        return self.received is not None


def leave_signals_to_parent() -> None:
    """For a child process: only its parent decides when it ends, and when the parent's thread ends, it does, too.

    Even if it never returns from an environment: the kernel kills it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _when_parent_ends(signal.SIGKILL)


def stop_with_parent(parent: int) -> None:
    """For a run that process `parent` has just forked: when that ends, however it does, this one is asked to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler, which this process has until it is a run
    _when_parent_ends(signal.SIGTERM)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)


def _when_parent_ends(number: int) -> None:
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
