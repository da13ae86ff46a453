"""The turns and statistics of benchmarks, with a clock that advances only while a contestant works."""

import pytest

from accel_rl.bench.timing import Repeated, Schedule, Shares, alternate, compare, ratio, two_resource_bound


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Player:
    """Takes exactly the time that it is given; the rate of turn n is n."""

    def __init__(self, name: str, log: list[str], clock: FakeClock):
        self.name, self._log, self._clock, self._turn = name, log, clock, 0
        self.shares: Shares = {}

    def run(self, seconds: float) -> float:
        self._log.append(self.name)
        self._clock.now += seconds
        self.shares = {"busy": self._turn / 10}
        self._turn += 1
        return float(self._turn - 1)

    def close(self) -> None:
        self._log.append(f"{self.name} closed")


def test_a_rate_is_steps_over_the_time_that_they_took() -> None:
    """A rate covers all the time of the work, including its last piece and what it leaves running."""
    clock = FakeClock()

    def work() -> int:
        clock.now += 0.75
        return 6

    assert Repeated("work", work, clock).run(2.0) == 8.0  # 3 pieces, 18 steps, 2.25 s
    assert clock.now == 2.25

    def finish() -> None:
        clock.now += 0.75

    assert Repeated("work", work, clock, finish).run(2.0) == 6.0


def test_order_reverses_and_warm_up_does_not_count() -> None:
    """Contestants take turns in changing order, and results exclude the first, cold turn."""
    log: list[str] = []
    clock = FakeClock()
    players = [Player(name, log, clock) for name in "abc"]
    seen: list[list[float]] = []
    on_round = lambda turns: seen.append([*turns["b"].rates])  # noqa: E731
    turns = alternate(players, Schedule(1.0, rounds=3), clock=clock, on_round=on_round)
    assert seen == [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0]]
    assert "".join(log) == "abc" + "abc" + "cba" + "abc"
    assert turns["b"].rates == [1.0, 2.0, 3.0]
    assert turns["b"].median == 2.0
    assert turns["b"].median_shares() == {"busy": 0.2}


@pytest.mark.parametrize(("budget_s", "rounds"), [(99.0, 20), (13.0, 3), (12.0, 3), (11.9, 2), (1.0, 2)])
def test_rounds_fit_into_the_budget(budget_s: float, rounds: int) -> None:
    """Rounds fit the time budget on a slow machine, where a round with its 3 turns takes 3 s."""
    clock = FakeClock()
    turns = alternate([Player(name, [], clock) for name in "abc"], Schedule(1.0, 20, budget_s), clock=clock)
    assert len(turns["a"].rates) == rounds


def test_least_rounds() -> None:
    """The minimum number of rounds is played, even beyond the budget."""
    schedule = Schedule(1.0, rounds=20, budget_s=10.0, least_rounds=5)
    assert [schedule.rounds_that_fit(round_s) for round_s in (0.1, 1.0, 3.0)] == [20, 9, 5]
    assert Schedule(1.0, 3, 10.0, least_rounds=5).rounds_that_fit(99.0) == 3


def test_all_are_closed_even_if_one_cannot_be_built() -> None:
    """Contestants are closed if building another one fails."""
    log: list[str] = []

    def fails() -> Player:
        raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError, match="no such thing"):
        compare([lambda: Player("a", log, FakeClock()), fails], Schedule(1.0, 1))
    assert log == ["a closed"]


def test_ratio_is_taken_round_by_round() -> None:
    """A ratio is the median of ratios by round, so a drifting machine does not matter."""
    drifting = [100.0, 10.0, 1.0, 1000.0]
    assert ratio([2 * rate for rate in drifting], drifting) == {"median": 2.0, "low": 2.0, "high": 2.0}
    value = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert value["median"] == 3.0
    assert 1.0 <= value["low"] < 3.0 < value["high"] <= 5.0
    assert value == ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5), "the interval must not depend on chance"


def test_two_resource_bound() -> None:
    """The bound adds times, not rates."""
    assert two_resource_bound([100.0, 300.0], [100.0, 150.0]) == pytest.approx([50.0, 100.0])
