"""The knock-out: who leaves, who stays, and when it ends."""

from collections.abc import Sequence

import pytest

from accel_rl.bench.timing import Schedule
from accel_rl.tune.knock_out import knock_out


class Player:
    """Has the given rates in its turns, in a circle, the first one for warm-up; takes a second for each."""

    now = 0.0
    order: list[str] = []

    def __init__(self, name: str, rates: Sequence[float]):
        self.name, self.shares, self._rates, self.turns = name, {}, rates, 0  # type: ignore[var-annotated]

    def run(self, seconds: float) -> float:
        Player.now += 1.0
        Player.order.append(self.name)
        self.turns += 1
        return self._rates[(self.turns - 1) % len(self._rates)]

    def close(self) -> None:
        pass


@pytest.fixture
def players() -> list[Player]:
    Player.now, Player.order = 0.0, []
    rates = {"fast": [100.0], "near": [98.0], "noisy": [80.0, 120.0, 60.0], "slow": [50.0], "pick": [40.0]}
    return [Player(name, turns) for name, turns in rates.items()]


def clock() -> float:
    return Player.now


def test_those_clearly_behind_leave(players: list[Player]) -> None:
    """Would catch a slow point that keeps on taking time, one that leaves for a single bad round, and a pick that is
    missing in the final."""
    turns = knock_out(players, "pick", Schedule(1.0, 5), clock=clock)
    played = {name: len(turn.rates) for name, turn in turns.items()}
    assert played == {"fast": 5, "near": 5, "noisy": 5, "slow": 2, "pick": 5}
    assert turns["noisy"].rates[:2] == [120.0, 60.0]  # without the warm-up
    assert Player.order[5:15] == ["fast", "near", "noisy", "slow", "pick", "pick", "slow", "noisy", "near", "fast"]


def test_a_knock_out_ends_in_time(players: list[Player]) -> None:
    """Would catch a grid that takes as long as it likes, and one that is judged by a single round."""
    assert len(knock_out(players, "pick", Schedule(1.0, 100, 30.0), clock=clock)["fast"].rates) == 6
    assert len(knock_out(players, "pick", Schedule(1.0, 100, 0.0), clock=clock)["fast"].rates) == 2


def test_a_knock_out_ends_with_two(players: list[Player]) -> None:
    """Would catch rounds that decide nothing any more."""
    turns = knock_out([players[0], players[3], players[4]], "pick", Schedule(1.0, 100), clock=clock)
    assert {name: len(turn.rates) for name, turn in turns.items()} == {"fast": 2, "slow": 2, "pick": 2}


def test_those_that_leave_are_closed_at_once(players: list[Player]) -> None:
    """Would catch processes and replays of points that are out, and a pick that is closed before the final."""
    left: list[tuple[str, int]] = []
    knock_out(players, "pick", Schedule(1.0, 5), clock=clock, leave=lambda c: left.append((c.name, len(Player.order))))
    assert left == [("slow", 15)]  # after the warm-up and two rounds


def test_least_rounds_come_before_anyone_leaves(players: list[Player]) -> None:
    """Would catch a point that leaves before its rounds can say anything."""
    turns = knock_out(players, "pick", Schedule(1.0, 5, 0.0, least_rounds=4), clock=clock)
    assert {len(turn.rates) for turn in turns.values()} == {4}


@pytest.mark.parametrize(
    ("names", "rounds"), [(("fast", "near", "pick"), 5), (("fast", "slow", "pick"), 2), (("fast", "pick"), 2)]
)
def test_without_a_final_two_go_on_while_neither_is_behind(
    players: list[Player], names: tuple[str, ...], rounds: int
) -> None:
    """Would catch a choice between two by two rounds, and rounds that a single one plays against a pick far behind."""
    some = [player for player in players if player.name in names]
    turns = knock_out(some, "pick", Schedule(1.0, 5), clock=clock, final_follows=False)
    assert len(turns["fast"].rates) == rounds
