"""Searches one setting after another, coarse to fine, in rounds that always include the default.

The coarse values of a setting take turns, with the best values so far of the other settings. The most important setting
comes first. Then each setting is searched again, with values between the best one and its neighbors. The last winner
and the points with the highest ratios to the default meet the default in a final. Only the final's rounds decide, so
that the best of many points does not win by luck. The fastest point is picked if its ratio to the default is WORTH_IT
or more, or if its whole 95 % interval is above 1. Else the default is picked.
"""

import math
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from accel_rl.bench.timing import Contestant, Schedule, alternate, ratio
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.host_memory import free_host_bytes
from accel_rl.tune.points import Point, Space

MAX_ROUNDS, MIN_ROUNDS = 20, 3  # for the values of one setting
FINAL_ROUNDS, MIN_FINAL_ROUNDS, FINALISTS = 30, 5, 3
WORTH_IT = 1.03  # a ratio to the default that suffices even if its interval includes 1
FINAL = 0.3  # the final's share of the time
MIN_FREE = 0.1  # fraction of the memory free at the start; below it, no further point is built


class Trial(NamedTuple):
    """A point's results in its last rounds: the median rate [steps/s], and the ratio to the default with an
    interval."""

    rate: float
    ratio: dict[str, float]
    num_rounds: int


@dataclass
class SearchResult:
    """A search's result. pick: the point to use. finalists: empty if none was likely to be faster than the default.

    skipped: the reason, by point. unsearched: settings that were not tried for lack of time."""

    pick: Point
    trials: dict[Point, Trial] = field(default_factory=dict)
    finalists: list[Point] = field(default_factory=list)
    skipped: dict[Point, str] = field(default_factory=dict)
    unsearched: list[str] = field(default_factory=list)


@dataclass
class Search:
    """A search of a space; `build` turns a point into a contestant that has warmed up.

    seconds: the length of a turn. budget_s: the approximate time for everything. A point that cannot be built
    (UsageError, RunError, OSError, MemoryError) is skipped; the default's error is raised. Raises UsageError if the
    time is too short for the values of one setting."""

    space: Space
    build: Callable[[Point], Contestant]
    seconds: float
    budget_s: float
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._start, self._least_free = self.clock(), MIN_FREE * free_host_bytes()
        self._open: dict[Point, Contestant] = {}
        self._best, self._result = self.space.start, SearchResult(self.space.start)

    def run(self) -> SearchResult:
        """Searches and returns the result. It closes all contestants, also after an error."""
        result = self._result
        try:
            contestant = self._open[self.space.start] = self.build(self.space.start)
            built = self.clock()
            contestant.run(self.seconds)
            rounds_s = (MIN_ROUNDS + 1) * (self.clock() - built)  # per point
            point_s = built - self._start + rounds_s
            stages = [(is_coarse, name) for is_coarse in (True, False) for name in self.space.axes]
            for index, (is_coarse, name) in enumerate(stages):
                around = self.space.around(self._best, name, is_coarse)
                points = [point for point in around if point not in result.skipped]
                if points and len(points) * point_s + 2 * rounds_s <= self._left_s():
                    end = self.clock() + self._left_s() / (len(stages) - index)
                    if self._open_only([self._best, *points]):
                        self._best = self._play(name, MAX_ROUNDS, MIN_ROUNDS, end)
                elif points and is_coarse:
                    result.unsearched.append(name)
            if not result.trials:
                raise self._nothing_tried(point_s, rounds_s)
            self._play_final()
            return result
        finally:
            self._close([*self._open])

    def _left_s(self) -> float:
        """Returns the time left before the final."""
        return self.budget_s * (1 - FINAL) - (self.clock() - self._start)

    def _nothing_tried(self, point_s: float, rounds_s: float) -> UsageError:
        if self._result.skipped:
            return UsageError(f"no other point can be built: {next(iter(self._result.skipped.values()))}")
        most = max(len(self.space.around(self.space.start, name, is_coarse=True)) for name in self.space.axes)
        missing_s = most * point_s + 2 * rounds_s - self._left_s()
        minutes = math.ceil(10 * (self.budget_s + missing_s / (1 - FINAL)) / 60) / 10
        return UsageError(
            f"minutes={self.budget_s / 60:g} is too short: a point needs {point_s:.1f} s to start and for its "
            f"first rounds; use --minutes {minutes:g} or more"
        )

    def _play_final(self) -> None:
        """Lets the finalists meet the default, and picks one."""
        ratios = {point: trial.ratio for point, trial in self._result.trials.items() if point != self.space.start}
        hopeful = [point for point, value in ratios.items() if value["high"] > 1 or point == self._best]
        order = sorted(hopeful, key=lambda point: (point == self._best, ratios[point]["median"]), reverse=True)
        self._result.finalists = self._open_only(order[:FINALISTS])
        if self._result.finalists:
            best = self._play("final", FINAL_ROUNDS, MIN_FINAL_ROUNDS, self._start + self.budget_s)
            value = self._result.trials[best].ratio
            if value["median"] >= WORTH_IT or value["low"] > 1:
                self._result.pick = best

    def _play(self, label: str, rounds: int, least_rounds: int, end: float) -> Point:
        """Plays rounds of all open points until `end`; returns the one with the highest ratio."""
        schedule, trials = Schedule(self.seconds, rounds, end - self.clock(), least_rounds), self._result.trials
        turns = alternate([*self._open.values()], schedule, label, self.clock)
        for point in self._open:
            turn, default = turns[str(point)], turns[str(self.space.start)]
            trials[point] = Trial(turn.median, ratio(turn.rates, default.rates), len(turn.rates))
        return max(self._open, key=lambda point: trials[point].ratio["median"])

    def _open_only(self, points: Collection[Point]) -> list[Point]:
        """Closes all contestants except these points' and the default's, and builds missing ones.

        Returns the open ones except the default, since building may fail and memory may be short."""
        self._close(self._open.keys() - {self.space.start, *points})
        for point in points:
            if point in self._open:
                continue
            print(f"starting: {point}", file=sys.stderr, flush=True)
            try:
                if free_host_bytes() < self._least_free:
                    raise MemoryError("memory is nearly full")
                self._open[point] = self.build(point)
            except (UsageError, RunError, OSError, MemoryError) as error:
                self._result.skipped[point] = " ".join(str(error).split()) or "out of memory"
        return [point for point in self._open if point != self.space.start]

    def _close(self, points: Collection[Point]) -> None:
        with ExitStack() as stack:
            for point in points:
                stack.callback(self._open.pop(point).close)
