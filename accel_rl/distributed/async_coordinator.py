"""Coordinates asynchronous learners: counts their steps, and collects their reports and states at rank 0."""

import contextlib
import pickle
import threading
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from accel_rl.errors import RunError
from accel_rl.hardware.shared_memory import Layout, SharedArrays
from accel_rl.training.coordinator import Coordinator, Request, copy_to_cpu


class AsyncCoordinator(Coordinator):
    """A coordinator of learners that share parameters and never wait for each other. Each ends on its own.

    to_rank_0: this learner's connection to rank 0; from_learners: rank 0's connections, by rank of the sender."""

    is_synchronous = False

    def __init__(
        self,
        rank: int,
        size: int,
        control: "Control",
        to_rank_0: "Connection[Any, Any] | None" = None,
        from_learners: "dict[int, Connection[Any, Any]] | None" = None,
    ):
        self.rank, self.size, self.control = rank, size, control
        self._to_rank_0 = to_rank_0
        self._inbox = _Inbox(from_learners or {})
        self._own: tuple[Any, bool] | None = None

    def add_steps(self, num_steps: int) -> int:
        return self.control.add_steps(self.rank, num_steps)

    def local_share(self, number: int) -> int:
        return number if self.rank == 0 else 0

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        if self._to_rank_0:
            self._send("report", (last, value))
            return []
        return [value, *self._inbox.take_reports(last)]

    def poll_reports(self) -> list[Any]:
        return self._inbox.take_reports(wait_for_last=False)

    def submit_state(self, state: Any, last: bool) -> None:
        if self._to_rank_0:
            self._send("state", (last, copy_to_cpu(state)))
        else:
            self._own = (copy_to_cpu(state), last)

    def collect_states(self) -> list[Any] | None:
        if self._own is None:
            return None
        own, last = self._own
        if (received := self._inbox.take_states(last)) is None:
            return None
        self._own = None
        return [own, *received]

    def _send(self, kind: str, content: Any) -> None:
        assert self._to_rank_0
        # `send` would make torch put tensors into shared memory. If rank 0 is gone, the supervisor knows.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._to_rank_0.send_bytes(pickle.dumps((kind, content)))


class _Inbox:
    """The messages of other learners to rank 0. A thread reads them, so senders never wait."""

    def __init__(self, connections: "dict[int, Connection[Any, Any]]"):
        self._connections = connections
        self._reports: list[Any] = []
        self._states: dict[int, Any] = {}  # the newest one of each rank
        self._reporting = set(connections)  # ranks whose last report has not arrived
        self._unfinished = set(connections)  # ranks whose last state has not arrived
        self._error: Exception | None = None
        self._changed = threading.Condition()
        if connections:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        ranks = {connection: rank for rank, connection in self._connections.items()}
        while ranks:
            for connection in wait(list(ranks)):
                rank = ranks[connection]  # type: ignore[index]
                kind, last, content = "end", True, None
                try:
                    kind, (last, content) = pickle.loads(self._connections[rank].recv_bytes())
                except (EOFError, OSError):
                    del ranks[connection]  # type: ignore[arg-type]
                except Exception as error:  # unpickling may raise anything; rank 0 raises it at its next call
                    self._error = error
                with self._changed:
                    if kind == "report":
                        self._reports.append(content)
                    elif kind == "state":
                        self._states[rank] = content
                    if last:
                        (self._unfinished if kind == "state" else self._reporting).discard(rank)
                    self._changed.notify_all()

    def take_reports(self, wait_for_last: bool) -> list[Any]:
        """Returns the reports since the last call. wait_for_last: waits until all learners have sent their last."""
        with self._changed:
            if wait_for_last:
                self._changed.wait_for(lambda: self._error or not self._reporting)
            self._check()
            reports, self._reports = self._reports, []
        return reports

    def take_states(self, wait_for_last: bool) -> list[Any] | None:
        """Returns one state of each other learner, by rank; None if some are missing."""
        with self._changed:
            if wait_for_last:
                self._changed.wait_for(lambda: self._error or not self._unfinished)
            self._check()
            if len(self._states) < len(self._connections):
                return None
            states = [self._states[rank] for rank in sorted(self._states)]
            for rank in self._unfinished:
                del self._states[rank]
        return states

    def _check(self) -> None:
        if self._error:
            raise RunError(f"a message of another learner cannot be read: {self._error}") from self._error


class Control:
    """Memory that the supervisor shares with its learners: their agent steps, the start signal, the request to all.

    fd: the descriptor of memory that another process has made; None: makes new memory."""

    def __init__(self, num_learners: int, fd: int | None = None):
        layout: Layout = {"steps": ((num_learners,), "<i8"), "started": ((1,), "<i8"), "request": ((1,), "<i8")}
        self.memory = SharedArrays(layout, fd)
        self._steps, self._started, self._request = self.memory.arrays.values()

    def begin(self, steps: int) -> None:
        """Sets the steps that a resumed run has done already."""
        self._steps[0] = steps

    def add_steps(self, rank: int, num_steps: int) -> int:
        """Adds to this learner's own count, so no learner waits for another; returns the sum over all learners."""
        self._steps[rank] += num_steps
        return int(self._steps.sum())

    def start(self) -> None:
        """Lets all learners begin to train."""
        self._started[0] = 1

    def wait_for_start(self) -> None:
        while not self._started[0]:
            time.sleep(0.002)

    @property
    def request(self) -> Request:
        """The request to all learners."""
        return Request(int(self._request[0]))

    def ask(self, request: Request) -> None:
        """Makes this request to all learners, unless a larger one was made."""
        self._request[0] = max(self.request, request)
