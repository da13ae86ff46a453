"""Threads of the learner's process, which can be paused between two pieces of work and report their errors."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Gate:
    """A gate that lets threads work while it is open. `closed` waits until no thread works."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open, self._num_working = True, 0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Waits until the gate is open; `closed` waits for the end of this block."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_open)
            self._num_working += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_working -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Closes the gate for a while."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._num_working)
        try:
            yield
        finally:
            with self._changed:
                self._is_open = True
                self._changed.notify_all()


class Loop(threading.Thread):
    """A thread that calls work() repeatedly, until `stop` or the first exception, which it passes to on_error."""

    def __init__(self, name: str, work: Callable[[], None], on_error: Callable[[BaseException], None]):
        super().__init__(name=name, daemon=True)
        self._work, self._on_error = work, on_error
        self._stops = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stops.is_set():
                self._work()
        except BaseException as error:
            self._on_error(error)

    def stop(self) -> None:
        """Asks the thread to end after its current piece of work."""
        self._stops.set()
