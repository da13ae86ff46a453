"""The driver's end of the line protocol by which peers take turns; benchmarks/peer_process.py has the other end.

Drivers are programs that train with other frameworks in turns. Each runs as a script in its peer's Python environment,
which lacks this project: drivers import only this module of it.

    driver writes                                    driver reads
    {"ready": {"parameters": 1687719, ...}}          run SECONDS
    {"steps": 960, "updates": 12, "seconds": 2.1}    run SECONDS
    ...                                              (end of file: it ends all processes that it has started)

A turn is a whole number of iterations, each a number of steps with their updates. It ends with the first iteration that
finishes after SECONDS. Standard output belongs to the protocol; frameworks print to standard error.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


class Turns:
    """The turns of a driver: `ready` and `iterated` block while it is not its turn.

    num_updates: returns the number of optimizer steps so far.
    """

    def __init__(self, num_updates: Callable[[], int]):
        self._num_updates = num_updates
        signal.signal(signal.SIGTERM, _end)  # the signal if the benchmark is killed: ends all processes started here
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._seconds = self._start = 0.0
        self._steps = self._updates_before = 0

    def ready(self, **facts: Any) -> None:
        """Announces, between two iterations, that the set-up is complete. facts: the peer's report on its set-up."""
        self._write({"ready": facts})
        self._wait()

    def iterated(self, steps: int) -> None:
        """Counts an iteration; call it after each. steps: its number of agent steps."""
        self._steps += steps
        seconds = time.perf_counter() - self._start
        if seconds >= self._seconds:
            updates = self._num_updates() - self._updates_before
            self._write({"steps": self._steps, "updates": updates, "seconds": seconds})
            self._wait()

    def _write(self, answer: dict[str, Any]) -> None:
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


def _end(*_: Any) -> None:
    """Ends this process group, since the other end has closed.

    Frameworks would take long to shut down cleanly. multiprocessing's resource tracker ignores the signal, removes the
    shared memory that other processes have left, and then ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.killpg(0, signal.SIGTERM)
