"""A learner's metrics between two rows of the log: games, statistics of updates, seconds, bytes."""

import math
import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.rollout import Game


@dataclass
class IntervalMetrics:
    """The metrics of one learner between two rows.

    games: those that finished. stats: each update's values, by name. seconds: parts of the wall time wall_s, by
    purpose. bytes_moved: from and to a GPU. counts: other metrics, which are summed over learners."""

    games: list[Game]
    stats: dict[str, list[float]]
    seconds: dict[str, float]
    wall_s: float
    bytes_moved: int
    counts: dict[str, float]


class MetricsBuffer:
    """A buffer of one learner's metrics until they are reported."""

    def __init__(self) -> None:
        self.statistics = UpdateStatistics()
        self._row_started = time.perf_counter()
        self._games: list[Game] = []
        self._seconds: dict[str, float] = {}
        self._bytes_moved = 0

    def add(
        self, steps: int, games: list[Game], stats: list[dict[str, Tensor]], seconds: dict[str, float], bytes_moved: int
    ) -> None:
        """Adds one rollout and the updates during and after it. steps: of the run so far, these included."""
        self._games.extend(games)
        for each in stats:
            self.statistics.add(steps, each)
        self._bytes_moved += bytes_moved
        self.add_seconds(seconds)

    def add_seconds(self, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def exclude(self, seconds: float) -> None:
        """Takes an interruption (an evaluation) out of the wall time."""
        self._row_started += seconds

    def flush(self, counts: dict[str, float]) -> IntervalMetrics:
        """Returns all metrics since the last call, with the given counts. Fetches statistics from the device."""
        now = time.perf_counter()
        wall_s = max(now - self._row_started, 1e-9)
        report = IntervalMetrics(self._games, self.statistics.flush(), self._seconds, wall_s, self._bytes_moved, counts)
        self._row_started = now
        self._games, self._seconds, self._bytes_moved = [], {}, 0
        return report

    def get_state(self) -> dict[str, Any]:
        return {"games": [tuple(game) for game in self._games], "statistics": self.statistics.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._games = [Game(*game) for game in state["games"]]
        self.statistics.set_state(state["statistics"])


def means(reports: list[IntervalMetrics]) -> dict[str, float]:
    """Returns the mean of each statistic over the updates of all learners."""
    stats: dict[str, list[float]] = {}
    for report in reports:
        for name, values in report.stats.items():
            stats.setdefault(name, []).extend(values)
    return {name: math.fsum(values) / len(values) for name, values in stats.items() if values}


def sums(reports: list[IntervalMetrics]) -> dict[str, float]:
    """Returns the sum of each count over learners."""
    names = {name: None for report in reports for name in report.counts}
    return {name: sum(report.counts.get(name, 0) for report in reports) for name in names}


def shares(reports: list[IntervalMetrics]) -> dict[str, float]:
    """Returns the share of wall time for each purpose, averaged over learners.

    "exchange" is the time of the learner that waits least, since it arrives last. "straggler" is how much longer the
    average learner waits for it. "gpu_idle" is the time without GPU work, if sampling has measured its part of that
    work. Simultaneous forward passes of two groups, or of learners that share a GPU, count twice."""
    names = {name: None for report in reports for name in report.seconds}
    parts = {name: [report.seconds.get(name, 0.0) / report.wall_s for report in reports] for name in names}
    result = {name: fmean(values) for name, values in parts.items()}
    if len(exchange := parts.get("exchange", [])) > 1:
        result |= {"exchange": min(exchange), "straggler": fmean(exchange) - min(exchange)}
    if "gpu_wait" in result:
        result["gpu_idle"] = max(0.0, 1.0 - result["gpu"])
    return result


# ---- statistics of updates ----


class NotFinite(NamedTuple):
    """A statistic that is nan or infinite.

    update: its number since the run began, from 1; steps: agent steps of the run, those of its rollout included."""

    update: int
    steps: int
    name: str
    value: float


class UpdateStatistics:
    """The statistics of updates since the last row.

    A statistic is a tensor: [U] with an entry for each update of its rollout, or 0-d for the last (or only) update.
    Only `fetch` waits for a GPU.
    """

    def __init__(self) -> None:
        self.num_updates = 0  # since the run began, up to the last fetch
        self._pending: list[tuple[int, dict[str, Tensor]]] = []
        self._values: dict[str, list[float]] = {}  # fetched, one number per update
        self._not_finite: NotFinite | None = None

    def add(self, steps: int, stats: dict[str, Tensor]) -> None:
        """Adds one rollout's statistics, in the order of computation. steps: of the run so far, its own included."""
        self._pending.append((steps, stats))

    def fetch(self) -> NotFinite | None:
        """Fetches new statistics from the device in one transfer.

        Returns the first value so far, in the order of computation, that is nan or infinite."""
        pending, self._pending = self._pending, []
        tensors = [torch.as_tensor(value).reshape(-1) for _, stats in pending for value in stats.values()]
        if not tensors:
            return self._not_finite
        if len({value.device for value in tensors}) > 1:
            tensors = [value.cpu() for value in tensors]
        values_of_all: list[float] = torch.cat(tensors).tolist()
        is_finite = all(map(math.isfinite, values_of_all))
        lengths, start = map(len, tensors), 0
        for steps, stats in pending:
            values = {}
            for name, length in zip(stats, lengths, strict=False):  # takes no length after the end of stats
                values[name] = values_of_all[start : start + length]
                self._values.setdefault(name, []).extend(values[name])
                start += length
            self.num_updates += max(map(len, values.values()), default=0)
            if not is_finite and self._not_finite is None:
                self._not_finite = _first_not_finite(values, self.num_updates, steps)
        return self._not_finite

    def flush(self) -> dict[str, list[float]]:
        """Returns each statistic's values of the updates since the last row; begins a new row."""
        self.fetch()
        values, self._values = self._values, {}
        return values

    def get_state(self) -> dict[str, Any]:
        self.fetch()
        return {"num_updates": self.num_updates, "values": {name: list(v) for name, v in self._values.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        self.num_updates = state["num_updates"]
        self._values = {name: list(numbers) for name, numbers in state["values"].items()}


def _first_not_finite(values: dict[str, list[float]], last_update: int, steps: int) -> NotFinite | None:
    """Finds a rollout's first value that is not finite: by update, then in the order of computation."""
    candidates = [
        (last_update - len(numbers) + 1 + entry, order, name, number)
        for order, (name, numbers) in enumerate(values.items())
        for entry, number in enumerate(numbers)
        if not math.isfinite(number)
    ]
    if not candidates:
        return None
    update, _, name, number = min(candidates)
    return NotFinite(update, steps, name, number)
