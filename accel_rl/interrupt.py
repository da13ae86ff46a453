"""SIGINT and SIGTERM: the first one asks, the second one insists."""

import signal
import threading
from types import FrameType
from typing import Any


class StopSignal:
    """While entered: `received` is the signal that asked the run to stop, or None.

    Before the run can stop in good order (`patient` is False) a signal raises KeyboardInterrupt at once, and so does
    a second one at any time. Does nothing outside the main thread, where Python lets nobody handle signals.
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

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        insisted = self.received is not None
        self.received = number
        if insisted or not self.patient:
            raise KeyboardInterrupt

    def __bool__(self) -> bool:
        return self.received is not None
