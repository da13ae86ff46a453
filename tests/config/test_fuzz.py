"""Randomly drawn settings, files and command lines; benchmarks/stress/fuzz.py tries thousands of them."""

import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, Phase, given, settings

from accel_rl.errors import UsageError
from fuzz import Try, attempt, resolve_run, train_run
from fuzz_settings import runs
from fuzz_texts import Command, commands, run_command

BY_CHANCE: Any = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "phases": [Phase.generate],
    "suppress_health_check": [*HealthCheck],
}
NUMBERS = itertools.count(1)


def check(trial: Try, example: Any) -> None:
    """Raises any error of an example that is not a refusal."""
    error = attempt(trial, example)
    if error is not None and not isinstance(error, UsageError):
        raise error


def is_light(run: dict[str, Any]) -> bool:
    """Tells whether a run needs no torch.optim, whose import takes longer than all runs of the fast test."""
    return not str(run.get("optimizer")).startswith("torch.")


@settings(**BY_CHANCE, max_examples=5)
@given(runs(in_process=True).filter(is_light))
def test_settings_train_or_are_refused(run: dict[str, Any]) -> None:
    """Randomly drawn settings are either refused or resolved; the fifth one trains with finite numbers."""
    check(resolve_run if next(NUMBERS) % 5 else train_run, run)


@settings(**BY_CHANCE, max_examples=15)
@given(commands())
def test_commands_and_files_are_obeyed_or_refused(command: Command) -> None:
    """Randomly drawn commands and files are either obeyed or refused in one line."""
    check(run_command, command)


SMALL = {"env": "CartPole-v1", "device": "cpu", "sampler": "serial", "steps": 10**5}
FOUND: list[dict[str, Any]] = [
    {"env": "pong", "frame_shape": [10**9, 10**9]},
    {"optimizer": "adam", "optimizer_options": {"epsilon": float("nan")}},
    {"optimizer": "adam", "optimizer_options": {"epsilon": 10**400}},
    {"algo": "dqn", "epsilon_odds": [1e-300]},
    {"learning_rate": 1e30},
    {"learning_rate_schedule": "linear:1e300"},
    {"learning_threads": 2**40},
    {"decorrelation_steps": 10**15},
]


@pytest.mark.parametrize("run", FOUND, ids=str)
def test_what_has_been_found_is_refused(run: dict[str, Any], tmp_path: Path) -> None:
    """Extreme numbers, which once ended in errors or endless runs, are refused."""
    with pytest.raises(UsageError):
        resolve_run(SMALL | run, tmp_path / "run")


@pytest.mark.slow
@settings(**BY_CHANCE, max_examples=60)
@given(runs(in_process=True))
def test_more_settings_train_or_are_refused(run: dict[str, Any]) -> None:
    """Randomly drawn runs either train or are refused."""
    check(train_run, run)


@pytest.mark.slow
@settings(**BY_CHANCE, max_examples=150)
@given(runs())
def test_settings_of_every_sampler_are_resolved_or_refused(run: dict[str, Any]) -> None:
    """Settings of samplers and learners in separate processes are either resolved or refused."""
    check(resolve_run, run)


@pytest.mark.slow
@settings(**BY_CHANCE, max_examples=100)
@given(commands())
def test_more_commands_and_files_are_obeyed_or_refused(command: Command) -> None:
    check(run_command, command)
