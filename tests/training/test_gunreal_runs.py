"""Tests of whole GUNREAL runs: agents that draw for the auxiliary tasks, and checkpoints of their replays."""

from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.algos.auxiliary_tasks import TASKS
from tests.helpers.runs import TINY, assert_same_policy, rows

pytestmark = pytest.mark.multiprocess
RUN: dict[str, Any] = {
    **TINY,
    "algo": "gunreal",
    "env": "pong",
    "device": "cpu",
    "deterministic": True,
    "dynamic_adjustment": False,
    "envs": 2,
    "predictors": 1,
    "trainers": 1,
    "min_training_batch": 10,
    "frame_shape": (36, 36),
    "frame_stack": 3,
    "noop_max": 3,
    "auxiliary_replay_steps": 24,
    "log_interval_steps": 10,
}


def test_two_halves_are_a_whole_run(tmp_path: Path) -> None:
    """A resumed GUNREAL run equals an uninterrupted one, and its tasks learn once the replays are full."""
    settings = {**RUN, "auxiliary_replay_steps": 14}
    whole = accel_rl.train(**settings, steps=50, out=tmp_path / "whole")
    halves = accel_rl.train(**settings, steps=40, schedule_steps=50, out=tmp_path / "halves")
    accel_rl.train(resume=halves, steps=50)
    assert_same_policy(halves, whole, "policy.safetensors")
    for task in TASKS:
        helps = [bool(row.get(f"train/{task}_loss")) for row in rows(whole)]
        assert helps.index(True) == 2, "after 14 steps of each agent, and one that is seen behind them"
        assert all(helps[2:])


@pytest.mark.slow
def test_replays_that_are_not_saved_are_filled_anew(tmp_path: Path) -> None:
    """Replays that were not saved are refilled before the tasks learn again."""
    run = accel_rl.train(**RUN, checkpoint_replay=False, steps=80, out=tmp_path / "run")
    accel_rl.train(resume=run, steps=160)
    helps = [bool(row.get("train/value_replay_loss")) for row in rows(run)]
    # Each agent had taken one more step: the segment after the checkpoint begins with it.
    assert helps[4:8] == [True] * 4 and helps[8:13] == [False] * 5 and all(helps[13:])
