"""What one learner measures between two rows of the log: games, statistics of updates, seconds, bytes."""

import math
import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.rollout import Game


@dataclass
class Report:
    """What one learner has done between two rows: finished games, numbers of updates by name, seconds of `wall` time
    by what they went for, bytes from and to a GPU, other metrics."""

    games: list[Game]
    numbers: dict[str, list[float]]
    seconds: dict[str, float]
    wall: float
    bytes_moved: int
    more: dict[str, float]


class MetricsBuffer:
    """Gathers what one learner does, until it is reported."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        self._began = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        self._games: list[Game] = []
        self._seconds: dict[str, float] = {}
        self._bytes_moved = 0

    def add(
        self, steps: int, games: list[Game], stats: list[dict[str, Tensor]], seconds: dict[str, float], moved: int = 0
    ) -> None:
        """One rollout and what was learned meanwhile; seconds: wall time by purpose; moved: bytes from and to a GPU."""
        self._games.extend(games)
        for each in stats:
            self.statistics.add(steps, each)
        self._bytes_moved += moved
        self.add_seconds(seconds)

    def add_seconds(self, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def exclude(self, seconds: float) -> None:
        """Takes an interruption (an evaluation) out of the wall time."""
        self._began += seconds

    def flush(self, more: dict[str, float]) -> Report:
        """All since the last time; for which statistics leave the device."""
        now = time.perf_counter()
        wall = max(now - self._began, 1e-9)
        report = Report(self._games, self.statistics.flush(), self._seconds, wall, self._bytes_moved, more)
        self._began = now
        self._clear()
        return report

    def get_state(self) -> dict[str, Any]:
        return {"games": [tuple(game) for game in self._games], "statistics": self.statistics.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._games = [Game(*game) for game in state["games"]]
        self.statistics.set_state(state["statistics"])


def means(reports: list[Report]) -> dict[str, float]:
    """Of each statistic, over the updates of all learners."""
    numbers: dict[str, list[float]] = {}
    for report in reports:
        for name, values in report.numbers.items():
            numbers.setdefault(name, []).extend(values)
    return {name: math.fsum(values) / len(values) for name, values in numbers.items() if values}


def shares(reports: list[Report]) -> dict[str, float]:
    """Of the learners' wall time, by what it went for: their mean.

    "exchange" is the time of the learner that waits least, since it comes last; what others have beyond that is
    "straggler", the wait for it."""
    names = {name: None for report in reports for name in report.seconds}
    parts = {name: [report.seconds.get(name, 0.0) / report.wall for report in reports] for name in names}
    found = {name: fmean(values) for name, values in parts.items()}
    if len(exchange := parts.get("exchange", [])) > 1:
        found |= {"exchange": min(exchange), "straggler": fmean(exchange) - min(exchange)}
    return found


# ---- statistics of updates ----


class NotFinite(NamedTuple):
    """update: its number since the run began, from 1; steps: agent steps of the run, those of its rollout included."""

    update: int
    steps: int
    name: str
    value: float


class Statistics:
    """The statistics of updates since the last row.

    A statistic is a tensor: [U], an entry for each update of its rollout, or 0-d, of the last (or only) one. Nothing
    here waits for a GPU but `look`.
    """

    def __init__(self) -> None:
        self.num_updates = 0  # since the run began, as far as looked at
        self._waiting: list[tuple[int, dict[str, Tensor]]] = []
        self._values: dict[str, list[float]] = {}  # what has been looked at, one number per update
        self._flaw: NotFinite | None = None

    def add(self, steps: int, stats: dict[str, Tensor]) -> None:
        """Those of one rollout, in the order of computation; steps: agent steps of the run, the rollout's included."""
        self._waiting.append((steps, stats))

    def look(self) -> NotFinite | None:
        """Fetches what is new from the device, at once. Returns the first of all so far, in the order of computation,
        that is nan or infinite."""
        waiting, self._waiting = self._waiting, []
        tensors = [torch.as_tensor(value).reshape(-1) for _, stats in waiting for value in stats.values()]
        if not tensors:
            return self._flaw
        if len({value.device for value in tensors}) > 1:
            tensors = [value.cpu() for value in tensors]
        numbers: list[float] = torch.cat(tensors).tolist()
        is_fine = all(map(math.isfinite, numbers))
        lengths, start = map(len, tensors), 0
        for steps, stats in waiting:
            values = {}
            for name, length in zip(stats, lengths, strict=False):  # ends with stats, before it takes a length
                values[name] = numbers[start : start + length]
                self._values.setdefault(name, []).extend(values[name])
                start += length
            self.num_updates += max(map(len, values.values()), default=0)
            if not is_fine and self._flaw is None:
                self._flaw = _first_flaw(values, self.num_updates, steps)
        return self._flaw

    def flush(self) -> dict[str, list[float]]:
        """Each statistic's numbers, of the updates since the last row; begins a new row."""
        self.look()
        values, self._values = self._values, {}
        return values

    def get_state(self) -> dict[str, Any]:
        self.look()
        return {"num_updates": self.num_updates, "values": {name: list(v) for name, v in self._values.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        self.num_updates = state["num_updates"]
        self._values = {name: list(numbers) for name, numbers in state["values"].items()}


def _first_flaw(values: dict[str, list[float]], last_update: int, steps: int) -> NotFinite | None:
    """Of one rollout; by update, then in the order in which an update computes them."""
    flaws = [
        (last_update - len(numbers) + 1 + entry, order, name, number)
        for order, (name, numbers) in enumerate(values.items())
        for entry, number in enumerate(numbers)
        if not math.isfinite(number)
    ]
    if not flaws:
        return None
    update, _, name, number = min(flaws)
    return NotFinite(update, steps, name, number)
