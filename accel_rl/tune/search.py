"""How it is searched: a knock-out of all points if they are few; else one setting after another, coarse to fine.

The rule:

1. Where all points of coarse values are MOST_AT_ONCE at most, and the time holds their rounds, all of them take part in
   one knock-out (knock_out.py).
2. Else one setting after another, the most important first: the coarse values of one setting take part in a knock-out,
   with the best values so far of all others. Then each setting once more, with values between the best and its
   neighbours. So a machine with many cores tries about 30 of hundreds of points.
3. The full grid is divided into knock-outs of MOST_AT_ONCE points, whose winners meet.
4. The last winner, and of all other points those with the highest ratios to the default, FINALISTS in all, meet the
   default in a final, whose rounds alone decide, so that the luck that made a point the best of many has no part in
   it. The fastest is picked if its ratio to the default is WORTH_IT or more, or the whole 95 % interval above 1; else
   the default stays. A wide interval alone keeps no default: on a busy machine, that would often be the slower choice.

What a run picks by default takes part in every knock-out: ratios to it are from the same rounds. The processes and the
replay of a point exist only while it is in.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from accel_rl.bench.timing import Contestant, Schedule, Turns, alternate, ratio
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.host_memory import free_host_bytes
from accel_rl.tune.knock_out import knock_out, strength
from accel_rl.tune.points import Point, Space

MOST_AT_ONCE = 16  # points whose processes exist at the same time
MOST_ROUNDS, LEAST_ROUNDS = 20, 3  # of a knock-out
FINAL_ROUNDS, LEAST_FINAL_ROUNDS, FINALISTS = 30, 5, 3
WORTH_IT = 1.03  # a ratio to the default, even if not sure
FINAL = 0.3  # its share of the time
LEAST_FREE = 0.1  # of the memory that is free at the start: below it, no further point is built


@dataclass
class Trial:
    """The rates [steps/s] of a point, and those of the default in the same rounds."""

    rates: list[float] = field(default_factory=list)
    default_rates: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> dict[str, float]:
        """Returns the ratio to the default, with its interval."""
        return ratio(self.rates, self.default_rates)


@dataclass
class Found:
    """What a search has found. skipped: why a point was not tried; unsearched: settings for which no time was left.

    final: turns of the finalists and the default; empty if the default was the only point left. best: the fastest of
    them; pick: the point to use."""

    trials: dict[Point, Trial] = field(default_factory=dict)
    skipped: dict[Point, str] = field(default_factory=dict)
    unsearched: list[str] = field(default_factory=list)
    best: Point = Point(())
    pick: Point = Point(())
    final: dict[Point, Turns] = field(default_factory=dict)

    def against_default(self, point: Point) -> dict[str, float]:
        """Returns the ratio to the default in the final."""
        return ratio(self.final[point].rates, next(iter(self.final.values())).rates)


class Search:
    """Searches a space with whatever `build` makes of a point: a contestant of that name, which has warmed up.

    A point that cannot be built (UsageError, RunError, OSError, MemoryError) is skipped; the default's error is raised.
    Raises UsageError if the time does not even hold one knock-out. seconds: of a turn; budget_s: for everything, about.
    """

    def __init__(
        self,
        space: Space,
        build: Callable[[Point], Contestant],
        seconds: float,
        budget_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.space, self._build, self._seconds, self._clock = space, build, seconds, clock
        self._budget_s, self._start = budget_s, clock()
        self._open: dict[Point, Contestant] = {}
        self._least_free = LEAST_FREE * free_host_bytes()
        self._build_s = self._rounds_s = 0.0  # of a point: until it has warmed up, and its least rounds
        self.found = Found(best=space.start, pick=space.start)

    def run(self, full_grid: bool = False) -> Found:
        """Searches, and returns what was found. Whatever happens, nothing is left running."""
        try:
            start = self._clock()
            contestant = self._open[self.space.start] = self._build(self.space.start)
            built = self._clock()
            contestant.run(self._seconds)
            self._build_s, self._rounds_s = built - start, (LEAST_ROUNDS + 1) * (self._clock() - built)
            grid = self.space.grid()[1:]
            if full_grid or (len(grid) < MOST_AT_ONCE and self._holds(len(grid))):
                self._search_grid(grid)
            else:
                self._search_axes()
            if not self.found.trials:
                raise self._nothing_tried()
            self._play_final()
            return self.found
        finally:
            self._close([*self._open])

    def _search_grid(self, points: Sequence[Point]) -> None:
        """All points, in as many knock-outs as it takes."""
        size = MOST_AT_ONCE - 2  # beside the default and the best so far
        chunks = [points] if len(points) < MOST_AT_ONCE else [points[i : i + size] for i in range(0, len(points), size)]
        for index, chunk in enumerate(chunks):
            self._knock_out(chunk, self._left_s() / (len(chunks) - index), f"knock-out {index + 1} of {len(chunks)}")

    def _search_axes(self) -> None:
        """One setting after another: first their coarse values, then those between."""
        stages = [(choose, name) for choose in (self.space.line, self.space.near) for name in self.space.axes]
        for index, (choose, name) in enumerate(stages):
            points = [point for point in choose(self.found.best, name) if point not in self.found.skipped]
            if points and self._holds(len(points)):
                self._knock_out(points, self._left_s() / (len(stages) - index), name)
            elif points and name not in self.found.unsearched:
                self.found.unsearched.append(name)

    def _nothing_tried(self) -> UsageError:
        if self.found.skipped:
            return UsageError(f"no other point can be built: {next(iter(self.found.skipped.values()))}")
        most = max(len(self.space.line(self.space.start, name)) for name in self.space.axes)
        missing_s = self._least_s(most) - self._left_s()
        minutes = math.ceil(10 * (self._budget_s + missing_s / (1 - FINAL)) / 60) / 10
        return UsageError(
            f"minutes={self._budget_s / 60:g} is too short: to start and its first rounds take a point "
            f"{self._build_s + self._rounds_s:.1f} s; use --minutes {minutes:g} or more"
        )

    def _left_s(self) -> float:
        """Returns the time that is left before the final."""
        return self._budget_s * (1 - FINAL) - (self._clock() - self._start)

    def _holds(self, num_points: int) -> bool:
        """Whether the time before the final holds a knock-out of this many points, the default and the best."""
        return self._least_s(num_points) <= self._left_s()

    def _least_s(self, num_points: int) -> float:
        return num_points * self._build_s + (num_points + 2) * self._rounds_s

    def _knock_out(self, points: Sequence[Point], budget_s: float, label: str) -> None:
        """Finds the best of these points, the default and the best so far."""
        end = self._clock() + budget_s
        self._close([point for point in self._open if point not in (self.space.start, self.found.best)])
        for point in points:
            self._try_to_open(point)
        default, by_name = self.space.start, {str(point): point for point in self._open}
        if len(by_name) < 2:
            return
        schedule = Schedule(self._seconds, MOST_ROUNDS, end - self._clock(), LEAST_ROUNDS)
        turns = knock_out(
            [*self._open.values()],
            str(default),
            schedule,
            label,
            self._clock,
            leave=lambda contestant: self._close([by_name[contestant.name]]),
            final_follows=False,
        )
        for name, turn in turns.items():
            trial = self.found.trials.setdefault(by_name[name], Trial())
            trial.rates += turn.rates
            trial.default_rates += turns[str(default)].rates[: len(turn.rates)]
        self.found.best = max(self._open, key=lambda point: strength(turns[str(point)]))

    def _play_final(self) -> None:
        """The finalists and the default; sets `best` and `pick`."""
        default, found = self.space.start, self.found
        chosen = self._finalists()
        self._close([point for point in self._open if point not in (default, *chosen)])
        for point in chosen:
            if point not in self._open:
                self._try_to_open(point)
        finalists = [point for point in chosen if point in self._open]
        if not finalists:
            return
        left_s = self._budget_s - (self._clock() - self._start)
        schedule = Schedule(self._seconds, FINAL_ROUNDS, left_s, LEAST_FINAL_ROUNDS)
        contestants = [self._open[point] for point in (default, *finalists)]
        turns = alternate(contestants, schedule, "final", self._clock)
        found.final = {point: turns[str(point)] for point in (default, *finalists)}
        found.best = max(found.final, key=lambda point: found.against_default(point)["median"])
        against_default = found.against_default(found.best)
        is_faster = against_default["median"] >= WORTH_IT or against_default["low"] > 1
        found.pick = found.best if is_faster else default

    def _finalists(self) -> list[Point]:
        """Returns the last winner and the points with the highest ratios to the default, if they may be above 1."""
        ratios = {point: trial.ratio for point, trial in self.found.trials.items() if point != self.space.start}
        hopeful = [point for point, value in ratios.items() if value["high"] > 1 or point == self.found.best]
        order = sorted(hopeful, key=lambda point: (point == self.found.best, ratios[point]["median"]), reverse=True)
        return order[:FINALISTS]

    def _try_to_open(self, point: Point) -> None:
        """Builds a point's contestant, unless that fails or memory is short."""
        print(f"\rstarting: {point}   ", end="", file=sys.stderr, flush=True)
        try:
            if free_host_bytes() < self._least_free:
                raise MemoryError("memory is nearly full")
            self._open[point] = self._build(point)
        except (UsageError, RunError, OSError, MemoryError) as error:
            self.found.skipped[point] = " ".join(str(error).split()) or "out of memory"
        print("\r" + " " * (len(str(point)) + 15) + "\r", end="", file=sys.stderr, flush=True)

    def _close(self, points: Sequence[Point]) -> None:
        with ExitStack() as stack:
            for point in points:
                stack.callback(self._open.pop(point).close)
