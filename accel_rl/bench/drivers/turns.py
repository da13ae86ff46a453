"""The driver's end of the line protocol by which peers take turns. accel_rl/bench/driven.py holds the other end.

    driver says                                      is told
    {"ready": {"parameters": 1687719, ...}}          run SECONDS
    {"steps": 960, "updates": 12, "seconds": 2.1}    run SECONDS
    ...                                              (nothing more: it ends with all the processes that it has started)

A turn is a whole number of iterations, each some acting and the updates that belong to it: it ends with the first one
that is finished after so many seconds. Standard output belongs to the protocol; what a framework prints goes to stderr.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


class Turns:
    """Waits in `ready` and `iterated` whenever it is not this driver's turn.

    num_updates: how many steps the optimiser has taken so far.
    """

    def __init__(self, num_updates: Callable[[], int]):
        self._num_updates = num_updates
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._seconds = self._start = 0.0
        self._steps = self._updates_before = 0

    def ready(self, **facts: Any) -> None:
        """To be called between two iterations, when everything is set up. facts: what the peer turned out to be."""
        self._say({"ready": facts})
        self._wait()

    def iterated(self, steps: int) -> None:
        """To be called after each iteration. steps: its agent steps."""
        self._steps += steps
        seconds = time.perf_counter() - self._start
        if seconds >= self._seconds:
            updates = self._num_updates() - self._updates_before
            self._say({"steps": self._steps, "updates": updates, "seconds": seconds})
            self._wait()

    def _say(self, answer: dict[str, Any]) -> None:
        try:
            print(json.dumps(answer), file=self._answers, flush=True)
        except BrokenPipeError:
            _end()

    def _wait(self) -> None:
        words = sys.stdin.readline().split()
        if not words:
            _end()
        self._seconds = float(words[1])
        self._steps, self._updates_before, self._start = 0, self._num_updates(), time.perf_counter()


def _end() -> None:
    """Nobody is there any more whose turn it could be. Frameworks take their time to end; and multiprocessing's
    resource tracker ignores this signal, removes what the others have left in shared memory, and ends then."""
    os.killpg(0, signal.SIGTERM)
