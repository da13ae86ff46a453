"""Learners that share parameters and go on by themselves: how they count, report, and hand in their states."""

import contextlib
import pickle
import threading
import time
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from accel_rl.distributed.tensors import on_cpu
from accel_rl.errors import RunError
from accel_rl.hardware.shared_memory import Layout, SharedArrays


class AsyncCoordinator:
    """Learners that go on by themselves and share parameters; rank 0 reads what others send to it, meanwhile.

    to_first: this learner's connection to rank 0; from_others: rank 0's, by rank."""

    updates_together = False

    def __init__(
        self,
        rank: int,
        size: int,
        control: "Control",
        to_first: "Connection[Any, Any] | None" = None,
        from_others: "dict[int, Connection[Any, Any]] | None" = None,
    ):
        self.rank, self.size, self.control = rank, size, control
        self._to_first = to_first
        self._inbox = _Inbox(from_others or {})
        self._own: tuple[Any, bool] | None = None

    def advance(self, num_steps: int) -> int:
        return self.control.count(self.rank, num_steps)

    def stops(self, wish: bool) -> bool:
        return wish  # each for itself

    def local_share(self, number: int) -> int:
        return number if self.rank == 0 else 0

    def all_gather(self, value: Any) -> list[Any]:
        return [value]

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        if self._to_first:
            self._send("report", (last, value))
            return []
        return [value, *self._inbox.take_reports(last)]

    def poll_reports(self) -> list[Any]:
        return self._inbox.take_reports(wait_for_last=False)

    def submit_state(self, state: Any, last: bool) -> None:
        if self._to_first:
            self._send("state", (last, on_cpu(state)))
        else:
            self._own = (on_cpu(state), last)

    def collect_states(self) -> list[Any] | None:
        if self._own is None:
            return None
        own, last = self._own
        if (others := self._inbox.take_states(last)) is None:
            return None
        self._own = None
        return [own, *others]

    def read_seconds(self) -> dict[str, float]:
        return {}

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        pass

    def _send(self, kind: str, content: Any) -> None:
        assert self._to_first
        # Not by `send`: torch would put tensors into shared memory for it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is the launching process's business
            self._to_first.send_bytes(pickle.dumps((kind, content)))


class _Inbox:
    """What others have sent to rank 0, read by a thread of its own: nobody waits to be rid of it."""

    def __init__(self, connections: "dict[int, Connection[Any, Any]]"):
        self._connections = connections
        self._reports: list[Any] = []
        self._states: dict[int, tuple[bool, Any]] = {}  # whether it is the last, and the newest state; by rank
        self._reporting = set(connections)  # those whose last report is not here
        self._trouble: Exception | None = None
        self._news = threading.Condition()
        if connections:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        ranks = {connection: rank for rank, connection in self._connections.items()}
        while ranks:
            for connection in wait(list(ranks)):
                rank = ranks[connection]  # type: ignore[index]
                try:
                    kind, (last, content) = pickle.loads(self._connections[rank].recv_bytes())
                except (EOFError, OSError):
                    kind, last, content = "end", True, None
                    del ranks[connection]  # type: ignore[arg-type]
                except Exception as error:  # whatever unpickling may raise, it must not go unheard
                    self._trouble = error
                    kind, last, content = "end", True, None
                with self._news:
                    if kind == "report":
                        self._reports.append(content)
                    elif kind == "state":
                        self._states[rank] = (last, content)
                    if last and kind != "state":
                        self._reporting.discard(rank)
                    self._news.notify_all()

    def take_reports(self, wait_for_last: bool) -> list[Any]:
        with self._news:
            if wait_for_last:
                self._news.wait_for(lambda: self._trouble or not self._reporting)
            self._check()
            reports, self._reports = self._reports, []
        return reports

    def take_states(self, wait_for_last: bool) -> list[Any] | None:
        """One of each of the others, by rank; None if they are not all there."""
        with self._news:
            if wait_for_last:
                self._news.wait_for(lambda: self._trouble or self._have_last())
            self._check()
            if len(self._states) < len(self._connections):
                return None
            states = [state for _, (_, state) in sorted(self._states.items())]
            self._states = {rank: entry for rank, entry in self._states.items() if entry[0]}
        return states

    def _have_last(self) -> bool:
        return sum(last for last, _ in self._states.values()) == len(self._connections)

    def _check(self) -> None:
        if self._trouble:
            raise RunError(f"what another learner has sent can't be read: {self._trouble}") from self._trouble


class Control:
    """What the launching process and its learners share: agent steps done by each learner, whether all are there, and
    the wish to stop."""

    def __init__(self, num_learners: int, fd: int | None = None):
        layout: Layout = {"steps": ((num_learners,), "<i8"), "go": ((1,), "<i8"), "stop": ((1,), "<i8")}
        self.memory = SharedArrays(layout, fd)
        arrays = self.memory.arrays
        self._steps, self._go, self._stop = arrays["steps"], arrays["go"], arrays["stop"]

    def begin(self, steps: int) -> None:
        """Of a run that is resumed, the steps that it has behind it."""
        self._steps[0] = steps

    def count(self, rank: int, num_steps: int) -> int:
        """Each learner counts its own, so that none waits for another; returns the sum."""
        self._steps[rank] += num_steps
        return int(self._steps.sum())

    def go(self) -> None:
        self._go[0] = 1

    def wait_for_go(self) -> None:
        while not self._go[0]:
            time.sleep(0.002)

    @property
    def stop(self) -> bool:
        return bool(self._stop[0])

    def ask_to_stop(self) -> None:
        self._stop[0] = 1
