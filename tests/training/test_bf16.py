"""Tests that runs in bfloat16 are as exact as those in float32: on one machine, a run repeats bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY, assert_same, assert_same_policy, assert_same_run, rows, rows_without_time

PONG: dict[str, Any] = {
    **TINY,
    "device": "cpu",
    "env": "pong",
    "frame_shape": (42, 42),
    "max_episode_steps": 7,
    "noop_max": 3,
    "decorrelation_steps": 5,
    "seed": 5,
    "steps": 80,
    "schedule_steps": 80,
    "log_interval_steps": 20,
    "precision": "bf16",
}
REPLAY: dict[str, Any] = {"warmup_steps": 20, "batch_size": 8, "replay_size": 60, "training_intensity": 2, "n_step": 2}
REPLAY |= {"target_interval_steps": 40, "epsilon_steps": 100}
EVALUATED: dict[str, Any] = {"eval_interval_steps": 40, "eval_episodes": 2}
ALGOS: dict[str, dict[str, Any]] = {
    "a2c": {"algo": "a2c"},
    "dqn": {"algo": "dqn", **REPLAY},
    "ppo lstm": {"algo": "ppo", "epochs": 2, "minibatches": 2, "core": "lstm", "core_size": 8, **EVALUATED},
}
PPO_LSTM = pytest.param("ppo lstm", marks=pytest.mark.slow)
SERIAL: dict[str, Any] = {"sampler": "serial"}
ALTERNATING: dict[str, Any] = {"sampler": "alternating", "workers": 2}


def policy(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = checkpoint.load(run / "checkpoint.pt")["policy"]
    return state


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", ["dqn", PPO_LSTM])  # DQN learns while it samples.
def test_alternating_equals_serial(case: str, tmp_path: Path) -> None:
    """In bfloat16, the alternating and the serial sampler give the same run."""
    settings = PONG | ALGOS[case]
    runs = [accel_rl.train(**settings, **each, out=tmp_path / each["sampler"]) for each in (SERIAL, ALTERNATING)]
    assert_same(*map(policy, runs))
    assert rows_without_time(runs[0]) == rows_without_time(runs[1])
    losses = [row["train/loss"] for row in rows(runs[0]) if row["train/loss"]]
    assert len(set(losses)) == len(losses) >= 2
    evaluations = [row for row in rows(runs[0]) if row.get("eval/mean_reward")]
    assert len(evaluations) == (2 if settings["eval_interval_steps"] else 0)
    assert all(value.dtype == torch.float32 for value in policy(runs[0]).values())


@pytest.mark.parametrize("case", ["a2c", PPO_LSTM])
def test_two_halves_equal_a_whole_run(case: str, tmp_path: Path) -> None:
    """In bfloat16, a resumed run equals an uninterrupted one."""
    settings = PONG | ALGOS[case] | SERIAL
    whole = accel_rl.train(**settings, out=tmp_path / "whole")
    half = accel_rl.train(**settings | {"steps": 40}, out=tmp_path / "half")
    accel_rl.train(resume=half, steps=80)
    assert_same_run(half, whole)
    if settings["eval_interval_steps"]:
        assert_same_policy(half, whole)
