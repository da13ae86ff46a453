"""Watches several children of one kind: their messages, and which of them have died or hang. Imports no torch."""

import logging
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from accel_rl.errors import RunError, UsageError
from accel_rl.processes.fork_server import Child, ForkServer

logger = logging.getLogger("accel_rl")

Message = tuple[str, Any]


class ProcessPool:
    """A pool of numbered children. If one ends, an error names it.

    name: their kind, such as "worker". place: returns where a child is, as in "environment 3 (run seed 1, pong)"."""

    def __init__(self, name: str, server: ForkServer, place: Callable[[int], str]):
        self._name, self._server, self._place = name, server, place
        self.children: dict[int, Child] = {}
        self._num_replaced = 0

    def launch(self, index: int, setup: Any) -> None:
        """Starts a child. The caller must have removed an earlier one with this index."""
        self.children[index] = self._server.launch(setup)

    def receive(self, index: int) -> Message:
        """Returns a child's next message (a kind and a content), and logs it if it is a warning.

        Raises the UsageError or RunError that a child reports, and RunError if it has died."""
        kind, content = self.children[index].receive()
        if kind == "died":
            raise RunError(f"{self.describe(index)} {content}")
        if kind == "usage":
            raise UsageError(content)
        if kind == "failed":
            raise RunError(f"{self._name} {index}: {content}")
        if kind == "warning":
            logger.warning("%s %d: %s", self._name, index, content)
        return kind, content

    def collect(
        self,
        expected: str,
        indices: Iterable[int],
        receive: Callable[[int], Message],
        watch: Callable[[list[int]], None],
        interval_s: float,
    ) -> dict[int, Any]:
        """Returns, by index, the content of each child's message of the expected kind, without removed children.

        receive: receives a child's message. watch: called at least every interval_s with the children that are still
        awaited; raises when there is no point in waiting."""
        indices, replies = list(indices), dict[int, Any]()
        while late := [index for index in indices if index in self.children and index not in replies]:
            controls = {self.children[index].control: index for index in late}
            for control in wait(list(controls), interval_s):
                kind, content = receive(controls[control])  # type: ignore[index]
                if kind == expected:
                    replies[controls[control]] = content  # type: ignore[index]
            watch([index for index in late if index in self.children and index not in replies])
        return {index: replies[index] for index in indices if index in replies}

    def remove(self, index: int) -> None:
        """Kills a child, if it still lives."""
        self.children[index].kill()
        self.children.pop(index).control.close()

    def report_loss(self, reason: str) -> None:
        """Counts and logs the replacement of a child."""
        self._num_replaced += 1
        logger.warning("%s; a new process takes over (%d so far)", reason, self._num_replaced)

    def hang_error(self, index: int, limit_s: float, flag: str) -> RunError:
        """Returns the error for a child that has shown no sign of life for limit_s."""
        return RunError(f"{self.describe(index)} has not answered for {limit_s:g} s ({flag})")

    def describe(self, index: int) -> str:
        """Returns a child's name and place, as the beginning of a sentence."""
        return f"{self._name} {index} (process {self.children[index].pid}), in {self._place(index)},"

    def close(self, patience_s: float) -> None:
        """Ends all children, and kills those that have not ended after patience_s."""
        self._server.close(self.children.values(), patience_s)
        self.children.clear()
        self._place = str  # a bound method makes a reference cycle, which would keep shared memory


class SignsOfLife:
    """A record of when each child last showed a sign of life. heartbeats: the children's counters in shared memory."""

    def __init__(self, heartbeats: "np.ndarray[Any, Any]"):
        self._heartbeats, self._seen = heartbeats, heartbeats.copy()
        self._last_s = np.full(len(heartbeats), time.monotonic())

    def look(self) -> None:
        """Notes which children have shown a sign of life since the last call."""
        self.restart(self._heartbeats != self._seen)
        self._seen = self._heartbeats.copy()

    def restart(self, which: Any = slice(None)) -> None:
        """Restarts the time limit of these children."""
        self._last_s[which] = time.monotonic()

    def silent_s(self, index: int) -> float:
        """Returns the seconds since the last sign of life that `look` noted, or since the last `restart`."""
        return time.monotonic() - float(self._last_s[index])
