"""Identifies the synchronous learners that the others wait for in vain.

torch.distributed does not say who is missing when a collective times out, and the host does not see NCCL's collectives
time out. So each learner counts the collectives that it has reached (`COLLECTIVES`). A learner that has waited for
learner_timeout_s asks all others for their counts through the store where they have met, and a thread of each answers.
A learner is absent if it does not answer, or has reached fewer collectives than others.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from accel_rl.errors import RunError, first_line
from accel_rl.updates.all_reduce import COLLECTIVES

POLL_S = 1.0  # seconds between a learner's checks for a roll call
ANSWER_S = 5.0  # a learner that does not answer within this time is absent


class LostError(RunError):
    """Raised when other learners have not reached a collective. absent: their ranks, if known."""

    def __init__(self, absent: list[int], message: str):
        super().__init__(absent, message)  # unpickling calls this class with these arguments
        self.absent, self.message = absent, message

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.absent))
        names = f"learner{'s' * (len(self.absent) > 1)} {ranks}" if ranks else "another learner"
        return f"has lost {names}, whose own messages may say why: {self.message}"


class RollCall:
    """Finds out which learners are absent, and answers others that ask.

    The `with` block raises LostError instead of torch.distributed's error if another learner is gone or late.

    store: a connection for this object alone. timeout_s: how long learners wait for a late one. host: the rank of the
    learner whose process has the store; None: another process has it. report: called before this object ends the
    process, since the main thread may be waiting for a GPU that waits for NCCL."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout_s: float,
        host: int | None,
        report: Callable[[LostError], None],
    ):
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s, self._host, self._report = timeout_s, host, report
        self._num_answered = 0  # roll calls so far
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._answer_regularly, name="roll call", daemon=True)

    def _answer_regularly(self) -> None:
        count, since = COLLECTIVES.value, time.monotonic()
        with contextlib.suppress(RuntimeError):  # the store is gone, with the process that had it
            while not self._is_over.wait(POLL_S):
                self._answer()
                if COLLECTIVES.value != count:
                    count, since = COLLECTIVES.value, time.monotonic()
                elif time.monotonic() - since > self._timeout_s:
                    since = time.monotonic()  # no learner is late while all evaluate
                    # Gloo's collectives time out by themselves. Then the main thread also asks, and ends the run.
                    if (absent := self._ask()) and not self._is_over.wait(2 * POLL_S):
                        self._report(LostError(absent, f"Timed out waiting {self._timeout_s:g} s"))
                        os._exit(1)

    def find_absent(self) -> list[int]:
        """Returns the ranks of the absent learners. The main thread calls this when its collective has failed."""
        self._is_over.set()
        absent: list[int] = [] if self._host is None else [self._host]

        def ask() -> None:
            with contextlib.suppress(RuntimeError):
                absent[:] = self._ask()

        asking = threading.Thread(target=ask, daemon=True)  # if the store does not answer, only this thread hangs
        asking.start()
        asking.join(2 * ANSWER_S)
        return [*absent]

    def _ask(self) -> list[int]:
        """Calls the roll. Returns the ranks of the absent learners; none if this is one of them.

        All learners return the first roll call's result, since this very failure may end others soon after."""
        if self._store.check(["absent"]):
            return [rank for rank in _parse(self._store.get("absent")) if rank != self._rank]
        number, counts, deadline = self._store.add("roll call", 1), dict[int, int](), time.monotonic() + ANSWER_S
        while len(counts) < self._size and time.monotonic() < deadline:
            self._answer()
            for rank in range(self._size):
                if rank not in counts and self._store.check([f"{number}/{rank}"]):
                    counts[rank] = int(self._store.get(f"{number}/{rank}"))
            time.sleep(POLL_S / 10)
        absent = [rank for rank in range(self._size) if counts.get(rank, -1) < max(counts.values())]
        if not absent or self._rank in absent:
            return []
        return _parse(self._store.compare_set("absent", "", " ".join(map(str, absent))))

    def _answer(self) -> None:
        """Answers the roll calls since the last answer."""
        number = self._store.add("roll call", 0)
        for each in range(self._num_answered + 1, number + 1):
            self._store.set(f"{each}/{self._rank}", str(COLLECTIVES.value))
        self._num_answered = number

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        message = peer_failure_message(error) if isinstance(error, RuntimeError) else None
        absent = self.find_absent() if message else []
        self._is_over.set()
        self._thread.join(POLL_S)
        if message:
            raise LostError(absent, message) from error


def _parse(absent: bytes) -> list[int]:
    return [int(rank) for rank in absent.split()]


def peer_failure_message(error: Exception) -> str | None:
    """Shortens torch.distributed's message that another learner is gone; returns None for any other error."""
    if not isinstance(error, dist.DistError) and "gloo" not in str(error):
        return None
    message = re.sub(r"^\[\S+\] ", "", first_line(error))  # without the line in Gloo's source
    return message.split(". This is typically")[0]
