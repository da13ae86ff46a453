"""Tests of the tuner's search on simulated machines, whose clock advances with their turns."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from accel_rl.errors import RunError, UsageError
from accel_rl.tune import search
from accel_rl.tune.points import Axis, Point, Space
from accel_rl.tune.search import Search, SearchResult

BUILD_S, TURN_S = 2.0, 0.5


class Machine:
    """Builds points with these rates, times noise and a drift; knows which are open. training: built from a point."""

    def __init__(self, rate: Callable[..., float], noise: float = 0.0, seed: int = 0, training: Any = None):
        self.rate, self.noise, self.rng, self.training = rate, noise, random.Random(seed), training or Training
        self.now = 0.0
        self.open: list[Point] = []
        self.built: list[Point] = []
        self.most_open = 0

    def build(self, point: Point) -> "Training":
        self.now += BUILD_S
        training: Training = self.training(self, point, self.rate(**point.settings))
        self.open.append(point)
        self.built.append(point)
        self.most_open = max(self.most_open, len(self.open))
        return training

    def search(self, space: Space, minutes: float = 3.0) -> SearchResult:
        return Search(space, self.build, TURN_S, minutes * 60, lambda: self.now).run()


class Training:
    def __init__(self, machine: Machine, point: Point, rate: float):
        self.machine, self.point, self.rate = machine, point, rate
        self.name, self.shares, self.num_turns = str(point), dict[str, float](), 0

    def run(self, seconds: float) -> float:
        machine = self.machine
        assert self.point in machine.open, "a point that has left takes a turn"
        machine.now += seconds
        self.num_turns += 1
        drift = 1 + 0.3 * math.sin(machine.now / 40)
        return self.rate * drift * math.exp(machine.rng.gauss(0, machine.noise))

    def close(self) -> None:
        self.machine.open.remove(self.point)


def space(**axes: tuple[int, ...]) -> Space:
    """Returns a space that starts at the smallest values and allows all between the smallest and the largest."""
    start = Point(tuple((name, values[0]) for name, values in axes.items()))
    return Space(start, {name: Axis(values, tuple(range(values[0], values[-1] + 1))) for name, values in axes.items()})


SMALL = space(workers=(1, 2, 4), threads=(1, 2))
LARGE = space(workers=(1, 2, 4, 8, 16, 32, 64), threads=(1, 2, 4, 8, 16, 32, 64), more=(1, 2, 4, 8, 16, 32, 64))


def peak(workers: int, threads: int, more: int = 1, wanted: int = 2) -> float:
    """Returns a rate that is highest near `wanted` workers, 2 threads, 1 more; workers and threads interact."""
    distance = math.log2(workers / wanted) ** 2 + math.log2(threads / 2) ** 2 + 0.5 * math.log2(more) ** 2
    return 1000 / (1 + 0.1 * distance + 0.02 * math.log2(workers) * math.log2(threads))


def wide_peak(workers: int, threads: int, more: int) -> float:
    return peak(workers, threads, more, wanted=12)


def grid(space: Space) -> list[Point]:
    """Returns all points of coarse values."""
    values = itertools.product(*(axis.coarse for axis in space.axes.values()))
    return [Point(tuple(zip(space.axes, each, strict=True))) for each in values]


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_drift_cost_little(seed: int) -> None:
    """The pick is nearly as fast as the best of all points, whatever the noise."""
    small = Machine(peak, 0.05, seed).search(SMALL)
    assert peak(**small.pick.settings) >= 0.95 * max(peak(**point.settings) for point in grid(SMALL))
    large = Machine(wide_peak, 0.05, seed).search(LARGE, minutes=6.0)
    assert wide_peak(**large.pick.settings) >= 0.95 * max(wide_peak(**point.settings) for point in grid(LARGE))


def test_a_large_space_is_searched_by_lines() -> None:
    """Few of hundreds of points are tried, few at once, with values between the coarse ones."""
    machine = Machine(wide_peak)
    found = machine.search(LARGE, minutes=6.0)
    assert len(grid(LARGE)) == 343 and len(machine.built) < 40
    assert machine.most_open <= 9  # the values of a setting, the default and the best so far
    assert found.pick.settings == {"workers": 12, "threads": 2, "more": 1} and not found.skipped
    assert found.trials[found.pick].ratio["median"] == pytest.approx(wide_peak(12, 2, 1) / wide_peak(1, 1, 1), rel=0.05)
    assert machine.open == []


def test_the_default_stays_where_nothing_is_faster() -> None:
    """A lucky point does not replace the default. If no point may be faster than the default, there is no final."""
    found = Machine(lambda workers, threads: 1000.0, noise=0.05).search(SMALL)
    assert found.finalists and found.pick == SMALL.start
    found = Machine(lambda workers, threads: 1000.0 / (workers * threads) ** 2).search(SMALL)
    assert found.finalists == [] and found.pick == SMALL.start and len(found.trials) > 1


@pytest.mark.parametrize(("rates", "is_picked"), [((0.5, 1.5, 1.6), True), ((0.9, 1.01, 1.02), False)])
def test_uneven_rounds_do_not_keep_the_default(rates: tuple[float, ...], is_picked: bool) -> None:
    """A point that is clearly faster in the median is picked whatever its interval; a slightly faster one isn't."""

    class Uneven(Training):
        def run(self, seconds: float) -> float:
            rate = super().run(seconds)
            return rate * (rates[self.num_turns % 3] if self.point.settings["workers"] == 4 else 1.0)

    found = Machine(lambda workers, threads: 1000.0 / threads**2, training=Uneven).search(SMALL, 1.0)
    uneven = SMALL.start.replace("workers", 4)
    assert found.finalists[0] == uneven and found.trials[uneven].ratio["low"] < 1
    assert (found.pick == uneven) == is_picked


def test_only_the_final_counts() -> None:
    """A point that was lucky before the final is not picked."""
    lucky = SMALL.start.replace("workers", 4)

    class Lucky(Training):
        def run(self, seconds: float) -> float:
            self.rate = 1000.0 if self.point == lucky and self.machine.now < 35 else 500.0  # of 60 s
            return super().run(seconds)

    found = Machine(lambda workers, threads: 0.0, training=Lucky).search(SMALL, 1.0)
    assert lucky in found.finalists and found.trials[lucky].ratio["median"] == pytest.approx(1, rel=0.05)
    assert found.pick == SMALL.start


def test_it_takes_about_the_time_that_it_was_given() -> None:
    """A search takes about the time that it was given, neither more nor half of it."""
    for minutes in (2.0, 6.0):
        machine = Machine(wide_peak, 0.05)
        machine.search(LARGE, minutes)
        assert machine.now <= 1.25 * 60 * minutes
    flat = Machine(lambda workers, threads: 1000.0, 0.05)
    flat.search(SMALL, 1.0)
    assert 30 <= flat.now <= 75


def test_what_time_was_left_out_is_said() -> None:
    """Settings that no time was left for are named, and the minutes that an error advises are enough.

    A setting whose coarse values were tried is not named, even if no time was left for the values between."""
    found = Machine(wide_peak).search(LARGE, minutes=1.4)
    assert found.trials and found.unsearched == ["more"]
    found = Machine(wide_peak).search(LARGE, minutes=2.1)
    assert found.trials.keys() <= {*grid(LARGE)} and found.unsearched == []
    with pytest.raises(UsageError, match=r"minutes=0.4 is too short: .* use --minutes [\d.]+ or more") as error:
        Machine(wide_peak).search(LARGE, minutes=0.4)
    assert Machine(wide_peak).search(LARGE, float(str(error.value).split("--minutes ")[1].split()[0])).trials


@pytest.mark.parametrize("error", [UsageError("envs=6 do not divide"), RunError("out of memory"), OSError("no forks")])
def test_points_that_cannot_be_built_are_skipped(error: Exception) -> None:
    def rate(workers: int, threads: int) -> float:
        if workers == 4:
            raise error
        return peak(workers, threads)

    machine = Machine(rate)
    found = machine.search(SMALL)
    assert {point.settings["workers"] for point in found.skipped} == {4}
    assert {*found.skipped.values()} == {str(error)}
    assert found.pick.settings == {"workers": 2, "threads": 2} and machine.open == []


def test_little_memory_ends_the_building(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further point is built once memory is nearly full."""
    machine = Machine(peak)
    monkeypatch.setattr(search, "free_host_bytes", lambda: 1000 - 310 * len(machine.open))
    found = machine.search(SMALL)
    assert machine.most_open == 3 and found.skipped
    assert {*found.skipped.values()} == {"memory is nearly full"}


def test_an_error_of_the_default_is_the_users() -> None:
    """An error of the default settings is raised as the run's own."""

    def fails(workers: int, threads: int) -> float:
        raise RunError("the environment fails")

    with pytest.raises(RunError, match="the environment fails"):
        Machine(fails).search(SMALL)


@pytest.mark.parametrize("turns", [0, 1, 12])
def test_nothing_is_left_when_a_signal_ends_it(turns: int) -> None:
    """Ctrl-C closes all contestants."""

    class Interrupted(Training):
        def run(self, seconds: float) -> float:
            nonlocal turns
            turns -= 1
            if turns < 0:
                raise KeyboardInterrupt
            return super().run(seconds)

    machine = Machine(peak, training=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        machine.search(SMALL)
    assert machine.built and machine.open == []
