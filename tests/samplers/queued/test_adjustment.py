"""Tests of dynamic adjustment on simulated machines whose speed depends on the counts, with noise, drift and
ceilings."""

import itertools
import json
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from accel_rl.errors import UsageError
from accel_rl.samplers.queued.adjustment import LONGEST_REST, SETTLING, Adjuster, Counts

INTERVAL_S = 60.0
ONE = Counts(1, 1, 1)
MANY = Counts(128, 10, 10)

Surface = Callable[[Counts], float]


class Window(NamedTuple):
    """A finished window. accepted: its counts were the accepted ones, before the window or because of it."""

    end_s: float
    counts: Counts
    objective: float
    accepted: bool


class Recorded(Adjuster):
    """An adjuster that keeps its windows."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.history: list[Window] = []

    def advance(self, now_s: float, *arguments: float) -> Counts | None:
        self.now_s = now_s
        return super().advance(now_s, *arguments)

    def _end_window(self, objective: float) -> None:
        measured, accepted = self.counts, self.accepted
        super()._end_window(objective)
        self.history.append(Window(self.now_s, measured, objective, measured in (accepted, self.accepted)))


class Machine:
    """Runs an adjuster's counts; advances it every 2 s.

    noise: std of a window's log objective. drift: growth of all objectives per window. memory: share in use."""

    def __init__(
        self,
        adjuster: Recorded,
        surface: Surface,
        noise: float = 0.0,
        drift: float = 0.0,
        memory: Surface | None = None,
    ):
        self.adjuster, self.surface, self.noise, self.drift = adjuster, surface, noise, drift
        self.memory = memory or (lambda counts: 0.5)
        self.counts, self.now_s, self.total = adjuster.counts, 1000.0, 0.0
        self.luck = 1.0  # noise and drift of the current window, as a factor
        self._rng = random.Random(5)

    def run(self, num_windows: int) -> list[Window]:
        """Returns the windows that have ended."""
        history = self.adjuster.history
        before = len(history)
        while len(history) < before + num_windows:
            known = len(history)
            counts = self.adjuster.advance(self.now_s, self.total, self.memory(self.counts))
            self.counts = counts or self.counts
            assert self.counts == self.adjuster.counts
            if len(history) != known:
                self.luck = math.exp(self._rng.gauss(0, self.noise) + self.drift * len(history))
            self.now_s += 2.0
            self.total += 2.0 * self.surface(self.counts) * self.luck
        return history[before:]


def machine(surface: Surface, start: Counts = ONE, limits: Counts = MANY, seed: int = 0, **options: Any) -> Machine:
    return Machine(Recorded(start, limits, seed, INTERVAL_S), surface, **options)


def many_cores(counts: Counts) -> float:
    """Returns the rate of the slowest stage: simulators share 32 cores, batches grow with fewer predictors, trainers
    overlap."""
    agents, predictors, trainers = counts
    simulation = 12_800 * min(agents / 32, 1) * (1 - 0.0005 * max(0, agents - 32))
    waiting = agents / (0.0065 + 0.002 / predictors)
    prediction = min(1, 0.6 + 0.2 * predictors) / (0.004 * predictors / agents + 1 / 9000)
    training = 5000 * min(1, 0.5 + 0.25 * trainers) / (1 + 0.02 * max(0, trainers - 4))
    return float(sum(rate**-4 for rate in (simulation, waiting, prediction, training)) ** -0.25)


def two_cores(counts: Counts) -> float:
    """Returns a rate that saturates with a few agents; more threads than two only get in each other's way."""
    agents, predictors, trainers = counts
    crowded = (1 - 0.005 * max(0, agents - 8)) * (1 - 0.04 * (predictors - 1)) * (1 - 0.04 * abs(trainers - 2))
    return 500 * (1 - math.exp(-agents / 1.2)) * crowded


def hill(counts: Counts) -> float:
    """Returns the height of a hill whose top at 20, 6, 5 is reached by steps of a few percent."""
    agents, predictors, trainers = counts
    off = (math.log(agents / 20)) ** 2 / 2 + 0.004 * (predictors - 6) ** 2 + 0.004 * (trainers - 5) ** 2
    return 100 * math.exp(-off)


def best_of_grid(surface: Surface) -> float:
    axes = ((1, 2, 4, 8, 16, 20, 32, 64, 128), range(1, 11), range(1, 11))
    return max(surface(Counts(*counts)) for counts in itertools.product(*axes))


@pytest.mark.parametrize(("surface", "windows"), [(many_cores, 60), (two_cores, 30), (hill, 80)])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_it_climbs_from_one_of_each(surface: Surface, windows: int, noise: float) -> None:
    """The search climbs to 90% of the best objective and stays there despite noise."""
    best = best_of_grid(surface)
    for seed in range(5):
        running = machine(surface, noise=noise, seed=seed)
        running.run(windows)
        assert surface(running.adjuster.accepted) > 0.9 * best
        running.run(100)
        assert surface(running.adjuster.accepted) > 0.9 * best
        assert sum(surface(window.counts) for window in running.run(100)) / 100 > 0.85 * best


def advance_to(adjuster: Recorded, objectives: list[float]) -> list[Counts]:
    """Returns the counts in windows of these objectives, which begin at 0 s, and then the last counts."""
    now_s = total = 0.0
    adjuster.advance(now_s, total, 0.0)
    found = []
    for objective in objectives:
        found.append(adjuster.counts)
        for part in (SETTLING, 1 - SETTLING):
            now_s += part * INTERVAL_S + 1e-6
            total += part * INTERVAL_S * objective
            adjuster.advance(now_s, total, 0.0)
    return [*found, adjuster.counts]


def test_a_rejected_change_goes_back_and_its_baseline_is_new() -> None:
    """After a rejected change the old counts run again, and their new objective is the next baseline."""
    adjuster = Recorded(Counts(2, 1, 1), Counts(2, 1, 2), 0, INTERVAL_S)
    counts = advance_to(adjuster, [100, 50, 60, 70])  # rejected; then the machine has become slower
    first, second = counts[1], counts[3]
    assert counts[0] == counts[2] == Counts(2, 1, 1) and {first, second} == {Counts(1, 1, 1), Counts(2, 1, 2)}
    assert adjuster.accepted == second  # 70 is clearly more than 60.
    assert [window.accepted for window in adjuster.history] == [True, False, True, True]


def test_windows_are_equally_long_and_settle_first() -> None:
    """Windows are equally long, and their objective leaves out the settling time."""
    adjuster, now_s, total, ends = Recorded(ONE, MANY, 0, INTERVAL_S), 1e6, 0, [1e6]
    since = 0.0
    while len(adjuster.history) < 20:
        known = len(adjuster.history)
        adjuster.advance(now_s, total, 0.5)
        if len(adjuster.history) > known:
            ends.append(now_s)
            since = 0.0
        now_s, since = now_s + 0.25, since + 0.25
        total += since > 0.9 * SETTLING * INTERVAL_S  # nothing happens in the first part of a window
    assert {window.objective for window in adjuster.history} == {4.0}
    assert {end - start for start, end in itertools.pairwise(ends)} == {INTERVAL_S}
    assert [window.end_s for window in adjuster.history] == ends[1:]


def test_a_pause_spoils_no_window() -> None:
    """Pauses, before or after the window has settled, do not count. However many there are, the window ends."""
    adjuster = Recorded(ONE, MANY, 0, INTERVAL_S)
    paused_s = done = 0.0
    for now_s in (0.0, 10.0, 25.0, 50.0, 59.0):
        assert adjuster.advance(now_s + paused_s, now_s + done, 0.5) is None
        adjuster.exclude(900.0, 10.0)
        paused_s, done = paused_s + 900.0, done + 10.0
    assert not adjuster.history
    assert adjuster.advance(60.0 + paused_s, 60.0 + done, 0.5)
    assert [window.objective for window in adjuster.history] == [1.0]


def test_full_memory_fixes_the_counts_as_limits_and_takes_back_what_raised_them() -> None:
    """Full memory takes the change back and makes the accepted counts the limits."""
    running = machine(lambda counts: counts.agents, memory=lambda counts: 0.96 if counts.agents > 20 else 0.9)
    adjuster = running.adjuster
    while adjuster.limits == MANY:
        running.run(1)
    assert adjuster.limits == adjuster.accepted and adjuster.limits.agents == 16
    assert all(window.counts.agents <= 20 for window in adjuster.history)  # it was taken back at once
    running.run(50)
    assert adjuster.accepted.agents == 16 and adjuster.limits.agents == 16


def test_it_rests_once_nothing_pays_and_wakes_up_when_the_machine_changes() -> None:
    """The search rests once no change pays, and climbs again after the machine has changed."""
    running = machine(two_cores)
    running.run(1000)
    windows = running.run(300)
    assert sum(window.counts == running.adjuster.accepted for window in windows) > 0.7 * len(windows)
    running.surface = lambda counts: 10 * hill(counts)
    running.run(100 + LONGEST_REST)
    assert hill(running.adjuster.accepted) > 0.9 * best_of_grid(hill)


COUNTS = st.builds(Counts, st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=100, deadline=None)
@given(
    start=COUNTS,
    room=st.tuples(st.integers(0, 40), st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 1000),
    windows=st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 0.96)), min_size=5, max_size=60),
)
def test_whatever_is_measured(
    start: Counts, room: tuple[int, int, int], seed: int, windows: list[tuple[float, float]]
) -> None:
    """For any measurements, counts stay within limits and change one at a time, and rejected changes are undone."""
    limits = Counts(*(number + more for number, more in zip(start, room, strict=True)))
    adjuster = Recorded(start, limits, seed, INTERVAL_S)
    now_s = total = 0.0
    for objective, memory_share in windows:
        for _ in range(4):
            accepted, running = adjuster.accepted, adjuster.counts
            adjuster.advance(now_s, total, memory_share)
            now_s += INTERVAL_S / 3
            total += objective
            assert all(1 <= number <= most for number, most in zip(adjuster.counts, limits, strict=True))
            assert all(new <= old for new, old in zip(adjuster.limits, limits, strict=True))
            limits = adjuster.limits
            assert num_different(accepted, adjuster.accepted) <= 1
            assert num_different(adjuster.accepted, adjuster.counts) <= 1
            if running not in (accepted, adjuster.accepted, adjuster.counts):
                assert adjuster.counts == accepted  # rejected
    rows = [window.counts for window in adjuster.history if window.accepted]
    assert all(num_different(old, new) <= 1 for old, new in itertools.pairwise(rows))


def num_different(left: Counts, right: Counts) -> int:
    return sum(a != b for a, b in zip(left, right, strict=True))


def test_it_continues_from_a_checkpoint() -> None:
    """An adjuster continues exactly from its state as JSON."""
    running = machine(many_cores, noise=0.03)
    for num_windows in (3, 20, 40):
        running.run(num_windows)
        state = json.loads(json.dumps(running.adjuster.get_state()))
        copies = [Recorded(Counts(3, 1, 1), MANY, seed, INTERVAL_S) for seed in (7, 8)]
        for copy in copies:
            copy.set_state(state)
            assert copy.get_state() == state and copy.counts == copy.accepted == running.adjuster.accepted
        histories = [Machine(copy, hill, noise=0.02).run(30) for copy in copies]
        assert histories[0] == histories[1]


def test_a_start_beyond_the_limits_is_refused() -> None:
    """Initial counts above the limits are a usage error."""
    with pytest.raises(UsageError, match="agents=32 to start with must be from 1 to 16, the most that may run"):
        Recorded(Counts(32, 2, 2), Counts(16, 8, 8), 0, INTERVAL_S)
