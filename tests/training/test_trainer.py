"""Tests of when recurring work of a run is due."""

import pytest

from accel_rl.training.loop import pass_a_multiple


@pytest.mark.parametrize(
    ("interval", "stride", "expected"),
    [(10, 5, [10, 20, 30]), (10, 4, [12, 20]), (10, 25, [25]), (1, 12, [12, 24, 36]), (0, 5, [])],
)
def test_due_where_a_multiple_is_passed(interval: int, stride: int, expected: list[int]) -> None:
    """An interval is due once at each multiple that a rollout reaches or passes, and never at step 0."""
    steps = range(stride, max([*expected, 30]) + 1, stride)
    assert [step for step in steps if pass_a_multiple(step - stride, step, interval)] == expected
