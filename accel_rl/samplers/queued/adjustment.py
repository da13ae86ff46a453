"""Decides how many agents, predictors and trainers run: dynamic adjustment (GA3C, section 4.3).

GA3C changes one of the three numbers by +-1 at random every minute, and keeps the change if trainings per second
increase. Here, too, one number changes at a time and the objective decides, but the search is made for noisy machines:

* Windows have equal lengths. The first part of each lets the machine settle and does not count.
* A change with a gain of more than CLEAR_GAIN is accepted at once. Any other change is undone, and the accepted
  configuration is measured again. The change is compared with the mean of the windows before and after it, so a
  steady drift cancels. Its gain must exceed the usual difference between windows of one configuration, which the search
  measures on the way. A gain that is smaller but not negative is measured again, at most MAX_TRIALS times. The more
  measurements there are, the smaller the mean gain that suffices.
* A rejected change is undone. The next change is compared with a new measurement of the accepted configuration, not
  with an old or lucky one.
* The number of agents doubles or halves as long as that pays off, and then changes by smaller and smaller shares;
  predictors and trainers change by one. The kind of change that was accepted last is tried first, others at random.
* Once no change pays off, the configuration rests for 1, 2, 4, ... up to LONGEST_REST windows before all changes are
  tried again. A rest ends early if the objective moves by more than CLEAR_GAIN.
* While the replay of an agent fills (GUNREAL), the window starts again: such an agent draws nothing for the auxiliary
  tasks, so more and more new agents would seem faster.
* If more than MEMORY_CEILING of the memory is in use, the accepted counts become upper limits (GUNREAL, section 3.2). A
  change under trial that exceeds them is undone.
"""

from collections import deque
from collections.abc import Generator
from math import log, sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from accel_rl.errors import UsageError

SETTLING = 1 / 3  # share of a window that does not count
CLEAR_GAIN = 0.10  # like all gains, a difference of logarithms
MAX_TRIALS = 3
FIRST_NOISE = 0.02  # assumed difference of two windows of one configuration, until it is measured
MIN_NOISE = 0.005
MIN_SHARE = 1 / 8  # the smallest change of the number of agents, relative to it
LONGEST_REST = 32  # windows
MEMORY_CEILING = 0.95  # GUNREAL, section 3.2
TINY = 1e-9  # replaces an objective of 0, which has no logarithm


class Counts(NamedTuple):
    """The numbers of agents, predictors and trainers."""

    agents: int
    predictors: int
    trainers: int


MOVES = tuple((name, sign) for name in Counts._fields for sign in (1, -1))
Measured = Generator[Counts, float, float]
"""A part of the search: yields a window's counts, receives its log objective; returns that of the accepted counts."""


class Adjuster:
    """Decides how many agents, predictors and trainers should run, from the speed of the current numbers.

    counts: the numbers that should run now; accepted: the best ones so far; limits: the largest allowed ones; the least
    is 1. Raises UsageError if start is not within the limits."""

    def __init__(self, start: Counts, limits: Counts, seed: int, interval_s: float):
        for name, number, limit in zip(Counts._fields, start, limits, strict=True):
            if not 1 <= number <= limit:
                raise UsageError(f"{name}={number} to start with must be from 1 to {limit}, the most that may run")
        self.accepted, self.limits, self.interval_s = start, limits, interval_s
        self._rng = np.random.default_rng(seed)
        self._noise = deque([FIRST_NOISE] * 3, maxlen=9)  # |differences| of windows of one configuration, in logarithms
        self._rejected: set[Counts] = set()  # since the last accepted change or the last rest
        self._last_move: tuple[str, int] | None = None  # the last accepted one
        self._share, self._rest_windows = 1.0, 1
        self.counts = start
        self._window_start_s: float | None = None
        self._settled: tuple[float, float] | None = None  # time and total when the window began to count
        self._start_search()

    # ---- windows ----

    def advance(self, now_s: float, total_objective: float, memory_share: float) -> Counts | None:
        """Returns new counts if they change now, else None. Call it often.

        now_s: time by a monotonic clock; total_objective: trainings or predictions since the run began; memory_share:
        the share of the memory in use, from 0 to 1."""
        before = self.counts
        if memory_share > MEMORY_CEILING:
            self._fix_limits()
        if self._window_start_s is None:
            self._window_start_s = now_s
        elif self._settled is None:
            if now_s >= self._window_start_s + SETTLING * self.interval_s:
                self._settled = (now_s, total_objective)
        elif now_s >= self._window_start_s + self.interval_s:
            settled_s, settled_total = self._settled
            self._end_window((total_objective - settled_total) / (now_s - settled_s))
            self._window_start_s, self._settled = now_s, None
        return None if self.counts == before else self.counts

    def restart_window(self) -> None:
        """Restarts the current window, when the speed so far is not representative."""
        self._window_start_s = self._settled = None

    def exclude(self, seconds: float, objective: float = 0.0) -> None:
        """Leaves a pause, such as an evaluation, and what was done in it out of the current window."""
        if self._window_start_s is not None:
            self._window_start_s += seconds
        if self._settled:
            self._settled = self._settled[0] + seconds, self._settled[1] + objective

    def _end_window(self, objective: float) -> None:
        self.counts = self._search.send(log(max(objective, TINY)))

    def _start_search(self) -> None:
        self._search = self._search_forever()
        self.counts = next(self._search)
        self.restart_window()

    def _fix_limits(self) -> None:
        """Makes the accepted counts upper limits; drops a change under trial that exceeds them."""
        self.limits = Counts(*map(min, self.limits, self.accepted))
        if not self._allowed(self.counts):
            self._start_search()

    # ---- the search ----

    def _search_forever(self) -> Measured:
        baseline = yield self.accepted
        while True:
            if move := self._choose_move():
                baseline = yield from self._try(move, baseline)
            else:
                baseline = yield from self._rest(baseline)

    def _choose_move(self) -> tuple[str, int] | None:
        """Returns an allowed change that is not rejected: the last accepted one, or a random one; None without any."""
        while True:
            moves = [move for move in MOVES if self._allowed(new := self._apply(move)) and new not in self._rejected]
            if self._last_move in moves:
                return self._last_move
            if moves:
                return moves[self._rng.integers(len(moves))]
            if self._share <= MIN_SHARE:
                return None
            self._share /= 2

    def _apply(self, move: tuple[str, int]) -> Counts:
        name, sign = move
        number = getattr(self.accepted, name)
        share = self._share if name == "agents" else 0.0
        new = number + max(1, round(number * share)) if sign > 0 else min(number - 1, round(number / (1 + share)))
        return self.accepted._replace(**{name: new})

    def _allowed(self, counts: Counts) -> bool:
        return all(1 <= number <= limit for number, limit in zip(counts, self.limits, strict=True))

    def _try(self, move: tuple[str, int], baseline: float) -> Measured:
        """Measures a change between windows of the accepted counts; accepts or rejects it."""
        changed = self._apply(move)
        gains: list[float] = []
        for num_trials in range(1, MAX_TRIALS + 1):
            trial = yield changed
            noise = 2 * max(MIN_NOISE, median(self._noise))
            if trial - baseline > max(CLEAR_GAIN, 2 * noise):
                self._accept(move, changed)
                return trial
            again = yield self.accepted
            self._noise.append(abs(again - baseline))
            gains.append(trial - (baseline + again) / 2)
            baseline = again
            if fmean(gains) < 0 or not self._allowed(changed):
                break
            if fmean(gains) > noise / sqrt(num_trials):
                self._accept(move, changed)
                return (yield changed)
        self._rejected.add(changed)
        return baseline

    def _accept(self, move: tuple[str, int], changed: Counts) -> None:
        self._rejected = {self.accepted}
        self.accepted, self._last_move, self._rest_windows = changed, move, 1

    def _rest(self, baseline: float) -> Measured:
        """Keeps the accepted counts for some windows; then all changes may be tried again."""
        first, windows = baseline, self._rest_windows
        self._rest_windows = min(2 * windows, LONGEST_REST)
        for _ in range(windows):
            before, baseline = baseline, (yield self.accepted)
            self._noise.append(abs(baseline - before))
            if abs(baseline - first) > CLEAR_GAIN:
                self._rest_windows = 1
                break
        self._rejected, self._share, self._last_move = set(), 1.0, None
        return baseline

    # ---- checkpoints ----

    def get_state(self) -> dict[str, Any]:
        """Returns the search's state without its windows, since a resumed run measures its machine again."""
        return {
            "accepted": list(self.accepted),
            "rejected": sorted(list(counts) for counts in self._rejected),
            "last_move": self._last_move and list(self._last_move),
            "share": self._share,
            "rest_windows": self._rest_windows,
            "noise": list(self._noise),
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from get_state's result, with its accepted counts clipped to the current limits."""
        self.accepted = Counts(*map(min, self.limits, state["accepted"]))
        self._rejected = {Counts(*counts) for counts in state["rejected"]}
        self._last_move = state["last_move"] and tuple(state["last_move"])
        self._share, self._rest_windows = state["share"], state["rest_windows"]
        self._noise = deque(state["noise"], maxlen=self._noise.maxlen)
        self._rng.bit_generator.state = state["rng"]
        self._start_search()
