"""Callbacks: the user's functions, called with each row of the log. They may end the run."""

import contextlib
import logging
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from accel_rl.errors import UsageError
from accel_rl.training.coordinator import Request

logger = logging.getLogger("accel_rl")

Row = dict[str, float]
Callback = Callable[[Row], Any]
"""A function that receives a row of progress.csv, metrics by name, and returns True to end the run."""


class RowListener(Protocol):
    """A listener to which a learner passes each row of the log."""

    @property
    def request(self) -> Request:
        """The listener's request to the run."""

    def __call__(self, row: Row) -> None:
        """Handles a row; the run goes on when this returns."""


class Callbacks:
    """Calls the user's functions one after the other, with a copy of the row for each.

    They cannot change the run's results: random generators are restored after them. A function that returns True ends
    the run as if its steps were done. If one raises, the run stops with a checkpoint, and `raise_error` then raises the
    same error. Raises UsageError for anything but functions."""

    def __init__(self, functions: Sequence[Callback] = ()):
        if not isinstance(functions, Sequence) or not all(map(callable, functions)):
            raise UsageError(f"callbacks={functions!r} must be a list of functions")
        self._functions = tuple(functions)
        self._error: Exception | None = None
        self.request = Request.GO_ON

    def __bool__(self) -> bool:
        return bool(self._functions)

    def add(self, function: Callback) -> None:
        """Adds a function, to be called before the others."""
        self._functions = (function, *self._functions)

    def __call__(self, row: Row) -> None:
        if not self._functions:
            return
        try:
            with generators_kept():
                answers = [function(dict(row)) for function in self._functions]
        except Exception as error:
            self._error, self.request = error, Request.STOP
            logger.error("a callback failed, so the run stops:\n%s", traceback.format_exc().rstrip())
            return
        if any(isinstance(answer, bool | np.bool_) and answer for answer in answers):
            self.request = max(self.request, Request.FINISH)

    def raise_error(self) -> None:
        """Raises a callback's error again, with its traceback."""
        if self._error:
            raise self._error


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restores the random generators that a run may draw from in this process."""
    uses_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if uses_gpu else ()
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
