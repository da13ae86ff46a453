"""Tests of when something that recurs in a run is due."""

import pytest

from accel_rl.training.loop import pass_a_multiple


@pytest.mark.parametrize(
    ("interval", "stride", "expected"),
    [
        (10, 1, [10, 20, 30]),
        (10, 5, [10, 20, 30]),
        (10, 4, [12, 20]),
        (10, 12, [12, 24, 36]),
        (10, 25, [25]),
        (1, 12, [12, 24, 36]),
        (0, 5, []),
    ],
)
def test_due_where_a_multiple_is_passed(interval: int, stride: int, expected: list[int]) -> None:
    """An interval is due once at each multiple that a rollout reaches or passes, and never at step 0."""
    steps = range(stride, max([*expected, 30]) + 1, stride)
    assert [step for step in steps if pass_a_multiple(step - stride, step, interval)] == [
        step for step in expected if step in steps
    ]


def test_each_multiple_once_from_any_start() -> None:
    """Multiples count from step 0, wherever a run was resumed."""
    assert [step for step in range(14, 50, 7) if pass_a_multiple(step - 7, step, 10)] == [14, 21, 35, 42]
    assert not pass_a_multiple(20, 29, 10) and pass_a_multiple(20, 30, 10) and pass_a_multiple(19, 20, 10)
