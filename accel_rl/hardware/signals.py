"""SIGINT, SIGTERM, and SIGHUP of a closed terminal: the first one asks a run to stop, the second one ends it."""

import signal
import threading
from types import FrameType
from typing import Any


class Stopped(SystemExit):
    """Ends this process after SIGTERM or SIGHUP, unlike the `sys.exit()` of an environment."""


class StopSignal:
    """A context that records the signal that asked the run to stop, as `received`; None: no signal yet.

    Before `ready` is called, a signal raises KeyboardInterrupt (SIGINT) or Stopped (the others) at once, since the
    run cannot stop cleanly yet. So does a second signal at any time, except SIGHUP, which a shell may send twice.
    Outside the main thread, where Python allows no signal handlers, this class does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.patient = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def ready(self) -> None:
        """Declares that the run can stop cleanly from now on. Raises an earlier signal's exception again, since an
        import may have caught it."""
        self.patient = True
        self.leave()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        insisted = self.received is not None and number != signal.SIGHUP
        self.received = number
        if insisted or not self.patient:
            self.leave()

    def leave(self) -> None:
        """Raises KeyboardInterrupt or Stopped if a signal was received."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise Stopped(128 + self.received)

    def __bool__(self) -> bool:
        return self.received is not None
