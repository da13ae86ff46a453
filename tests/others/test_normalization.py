"""What others lost of the normalization of observations between training, evaluation and a saved policy."""

from pathlib import Path
from typing import Any

import pytest

import accel_rl
from tests.helpers.runs import TINY_SERIAL_RUN

SETTINGS: dict[str, Any] = TINY_SERIAL_RUN | {
    "algo": "ppo",
    "env": "tests.others.envs:limited",
    "envs": 4,
    "horizon": 8,
}
SETTINGS |= {"env_options": {"limit": 4}, "normalize_observations": True, "steps": 64, "eval_interval_steps": 32}


def test_a_saved_policy_has_the_moments_of_training_alone(tmp_path: Path) -> None:
    """IsaacLab issue 2635: the moments were not saved. rl-baselines3-zoo issue 275: evaluations changed them.

    Training sees 0, 1, 2, 3 again and again, 64 numbers in all: mean 1.5, variance 1.25. Evaluations add nothing."""
    run = accel_rl.train(**SETTINGS, eval_episodes=4, out=tmp_path / "run")
    agent = accel_rl.load(run, trust=True)
    for _ in range(2):
        moments = agent.policy.norm.moments
        assert moments.count.item() == 64
        assert (moments.mean.item(), moments.variance.item()) == pytest.approx((1.5, 1.25), rel=1e-12)
        assert agent.evaluate(5).mean_reward == 4
