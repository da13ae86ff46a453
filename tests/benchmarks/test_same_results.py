"""The check that a refactoring changed no number."""

from pathlib import Path
from typing import Any

import pytest

from same_results import differences

ROOT = Path(__file__).parents[2]


def test_differences() -> None:
    """A part that only one commit has counts as a difference."""
    old = {("a2c", "policy"): "1", ("a2c", "log"): "2", ("a2c", "update"): "3"}
    new = {("a2c", "policy"): "1", ("a2c", "log"): "4", ("ppo", "policy"): "5"}
    assert [line.split() for line in differences(old, new)] == [
        ["a2c", "log", "2", "4"],
        ["a2c", "update", "3", "-"],
        ["ppo", "policy", "-", "5"],
    ]
    assert differences(old, old) == []


@pytest.mark.slow
def test_a_checkout_equals_itself(run_program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs, and equal checkouts give equal digests."""
    run_program("same_results.py", ROOT, ROOT, "ppo_vec", "dqn_vec")
    assert capsys.readouterr().out.startswith("EQUAL: ")
