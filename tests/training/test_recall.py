"""A task that only memory can solve: what recurrent cores are for."""

from pathlib import Path
from typing import Any

import pytest

import accel_rl
from tests.helpers.samplers import TOYS

# With these settings all of 10 seeds solve it, with either core.
SETTINGS: dict[str, Any] = {
    "algo": "ppo",
    "env": f"{TOYS}:Recall",
    "core_size": 32,
    "envs": 64,
    "horizon": 33,
    "epochs": 4,
    "minibatches": 2,
    "learning_rate": 1e-2,
    "learning_rate_schedule": "linear",
    "clip_schedule": "constant",
    "gae_lambda": 0.95,
    "entropy_weight": 0.01,
    "normalize_advantage": "rollout",
    "separate_value": False,
    "decorrelation_steps": 20,
    "sampler": "serial",
    "device": "cpu",
    "sampling_threads": 1,
    "learning_threads": 1,
    "eval_greedy": True,
    "eval_interval_steps": 0,
    "tensorboard": False,
    "seed": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize(("core", "steps"), [("lstm", 100_000), ("gru", 60_000)])
def test_a_core_remembers(tmp_path: Path, core: str, steps: int) -> None:
    """Would catch what keeps PPO from learning at all, and a policy from learning over time: gradients that end at a
    step, states that are lost between rollouts or mixed up between environments. Without a core the expected score is
    1/2, whatever is learned: the observation on which the last action is chosen is always the same."""
    run = accel_rl.train(**SETTINGS, core=core, steps=steps, out=tmp_path / "run")
    assert accel_rl.load(run, trust=True).evaluate(20).mean_reward >= 0.95
