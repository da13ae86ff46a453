"""Runs contestants in turns, and computes medians of their rates and ratios with intervals.

Machines drift, so a rate alone says little, but the ratio of two rates from the same round says a lot.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

NUM_RESAMPLINGS = 2000
MIN_ROUNDS, FULL_ROUNDS = 2, 20

Shares = dict[str, float]
"""Parts of a turn's wall time by what they were spent on, each from 0 to 1."""


class Contestant(Protocol):
    """The interface of a contestant. Between its turns its processes sleep and use no CPU time."""

    name: str
    shares: Shares  # the newest turn's; may be empty

    def run(self, seconds: float) -> float:
        """Takes a turn of about this many seconds; returns its rate in steps/s."""

    def close(self) -> None: ...


Builder = Callable[[], Contestant]


class Repeated:
    """A contestant that repeats one piece of work, which returns its number of steps, until its turn is over.

    finish: waits until no work is left running on a GPU. The wait is part of the turn."""

    def __init__(
        self,
        name: str,
        work: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
        finish: Callable[[], object] = lambda: None,
    ):
        self.name, self._work, self._clock, self._finish = name, work, clock, finish
        self.shares: Shares = {}

    def run(self, seconds: float) -> float:
        start, steps = self._clock(), 0
        while self._clock() - start < seconds:
            steps += self._work()
        self._finish()
        return steps / (self._clock() - start)

    def close(self) -> None:
        pass


@dataclass
class Turns:
    """A contestant's rates [steps/s] and shares of time, one entry for every round that counts."""

    rates: list[float] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Returns the median rate in steps/s."""
        return statistics.median(self.rates)

    def median_shares(self) -> Shares:
        return {name: statistics.median(turn[name] for turn in self.shares) for name in self.shares[0]}


@dataclass(frozen=True)
class Schedule:
    """Turns of `seconds` each in `rounds` rounds, or in as many as fit into budget_s, but at least in least_rounds.

    budget_s includes the warm-up and, in `compare`, building the contestants."""

    seconds: float
    rounds: int
    budget_s: float = float("inf")
    least_rounds: int = MIN_ROUNDS

    def rounds_that_fit(self, round_s: float) -> int:
        """Returns the number of rounds.

        round_s: the warm-up's duration. A turn can be longer than `seconds`, since rollouts are not cut short."""
        fit = min(self.budget_s / round_s - 1, self.rounds)
        return min(max(int(fit), self.least_rounds), self.rounds)


def make_schedule(seconds: float, rounds: int | None, full: bool, budget_s: float) -> Schedule:
    """Returns a schedule with the user's rounds, FULL_ROUNDS if full, or as many as fit into budget_s."""
    if rounds or full:
        return Schedule(seconds, rounds or FULL_ROUNDS)
    return Schedule(seconds, FULL_ROUNDS, budget_s)


def alternate(
    contestants: Sequence[Contestant],
    schedule: Schedule,
    label: str = "",
    clock: Callable[[], float] = time.perf_counter,
    on_round: Callable[[dict[str, Turns]], object] = lambda turns: None,
) -> dict[str, Turns]:
    """Returns every contestant's turns by its name.

    In each round every contestant takes one turn, in an order that reverses with every round. The first round, a
    warm-up, does not count. Progress goes to stderr. on_round: called with the turns so far after each round that
    counts."""
    turns = {contestant.name: Turns() for contestant in contestants}
    assert len(turns) == len(contestants), "two contestants have the same name"
    start = clock()
    for contestant in contestants:
        contestant.run(schedule.seconds)
    rounds = schedule.rounds_that_fit(clock() - start)
    for index in range(rounds):
        print(f"\r{label}: round {index + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        for contestant in contestants if index % 2 == 0 else reversed(contestants):
            turns[contestant.name].rates.append(contestant.run(schedule.seconds))
            turns[contestant.name].shares.append(dict(contestant.shares))
        on_round(turns)
    print("\r" + " " * (len(label) + 20) + "\r", end="", file=sys.stderr, flush=True)
    return turns


def compare(builders: Iterable[Builder], schedule: Schedule, label: str = "") -> dict[str, Turns]:
    """Builds all contestants, alternates them, and closes them, even after an error."""
    with ExitStack() as stack:
        start = time.perf_counter()
        contestants = [stack.enter_context(closing(build())) for build in builders]
        left_s = schedule.budget_s - (time.perf_counter() - start)
        return alternate(contestants, replace(schedule, budget_s=left_s), label)


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Returns the median of the rounds' ratios above / below, with a 95 % bootstrap interval (low, high)."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    drawn = np.random.default_rng(0).choice(ratios, (NUM_RESAMPLINGS, len(ratios)))
    medians = np.sort(np.median(drawn, axis=1))
    outside = NUM_RESAMPLINGS // 40
    return {"median": statistics.median(ratios), "low": float(medians[outside]), "high": float(medians[-outside - 1])}


def two_resource_bound(simulation: Sequence[float], network: Sequence[float]) -> list[float]:
    """Returns, for each round, the steps/s that no schedule exceeds if simulation and network share the cores.

    A step takes the time of its simulation plus that of its passes through the network, each measured alone on all
    cores: 1 / (1/S + 1/N)."""
    return [1 / (1 / s + 1 / n) for s, n in zip(simulation, network, strict=True)]


def format_ratio(value: dict[str, float]) -> str:
    return f"{value['median']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
