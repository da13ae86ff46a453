"""Tests that runs in bfloat16, like those in float32, repeat bit for bit on one machine."""

from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY, assert_resumes_exactly, assert_same, assert_same_policy, rows, rows_without_time

PONG: dict[str, Any] = {
    **TINY,
    "device": "cpu",
    "env": "pong",
    "frame_shape": (42, 42),
    "max_episode_steps": 7,
    "noop_max": 3,
    "decorrelation_steps": 5,
    "seed": 5,
    "log_interval_steps": 20,
    "precision": "bf16",
}
REPLAY: dict[str, Any] = {"warmup_steps": 20, "batch_size": 8, "replay_size": 60, "training_intensity": 2, "n_step": 2}
REPLAY |= {"target_interval_steps": 40, "epsilon_steps": 100}
EVALUATED: dict[str, Any] = {"eval_interval_steps": 40, "eval_episodes": 2}
ALGOS: dict[str, dict[str, Any]] = {
    "dqn": {"algo": "dqn", "network": "a3c", **REPLAY},
    "ppo lstm": {"algo": "ppo", "epochs": 2, "minibatches": 2, "core": "lstm", "core_size": 8, **EVALUATED},
}


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", ["dqn", pytest.param("ppo lstm", marks=pytest.mark.slow)])
def test_a_run_repeats(case: str, tmp_path: Path) -> None:
    """In bfloat16, a run in two halves equals a whole one, and the alternating sampler's equals the serial one's."""
    settings = {**PONG, **ALGOS[case], "sampler": "serial"}
    half, whole = assert_resumes_exactly(tmp_path, settings, 80, stop=40)
    settings |= {"sampler": "alternating", "workers": 2, "steps": 80}
    alternating = accel_rl.train(**settings, out=tmp_path / "alternating")
    policies = [checkpoint.load(run / "checkpoint.pt")["policy"] for run in (whole, alternating)]
    assert_same(*policies)
    assert all(value.dtype == torch.float32 for value in policies[0].values())
    assert rows_without_time(alternating) == rows_without_time(whole)
    losses = [row["train/loss"] for row in rows(whole) if row["train/loss"]]
    assert len(set(losses)) == len(losses) >= 2
    if settings["eval_interval_steps"]:
        assert_same_policy(half, whole)
        assert len([row for row in rows(whole) if row["eval/mean_reward"]]) == 2
