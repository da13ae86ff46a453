"""Mistakes of other frameworks in the normalization of observations and returns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel_rl
from accel_rl.algos.ppo import PPO, PPOSettings
from accel_rl.envs.spec import EnvConfig
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.runs import TINY_SERIAL_RUN, rows
from tests.helpers.samplers import closing, make, spec_of
from tests.helpers.updates import RecordingUpdate

ENVS = "tests.others.envs"

SETTINGS: dict[str, Any] = TINY_SERIAL_RUN | {"algo": "ppo", "env": f"{ENVS}:limited", "envs": 4, "horizon": 8}
SETTINGS |= {"env_options": {"limit": 4}, "normalize_observations": True, "normalize_returns": True}
SETTINGS |= {"steps": 64, "eval_interval_steps": 32}


def test_a_saved_policy_has_the_moments_of_training_alone(tmp_path: Path) -> None:
    """IsaacLab issue 2635 and CleanRL issue 532: the moments were not saved, and evaluations made their own.
    rl-baselines3-zoo issue 275: evaluations changed them. Stable-Baselines3 issue 2101: an evaluation's
    original rewards were scaled ones.

    Training sees 0, 1, 2, 3 repeatedly, 64 numbers in all: mean 1.5, variance 1.25. Evaluations add nothing. Every
    score is 4, whatever rewards are divided by."""
    run = accel_rl.train(**SETTINGS, eval_episodes=4, out=tmp_path / "run")
    last = rows(run)[-1]
    assert last["rollout/ep_rew_mean"] == last["eval/mean_reward"] == "4.0"
    agent = accel_rl.load(run, trust=True)
    for _ in range(2):
        moments = agent.policy.norm.moments
        assert moments.count.item() == 64
        assert (moments.mean.item(), moments.variance.item()) == pytest.approx((1.5, 1.25), rel=1e-12)
        assert agent.evaluate(5).mean_reward == 4


@pytest.mark.parametrize("mode", [None, "NextStep", "SameStep", "Disabled"])
def test_returns_are_those_of_steps_that_were_taken(mode: str | None) -> None:
    """Gymnasium issue 1451 and pull request 1668: with one autoreset mode the step that only resets counted as a reward
    of 0; with another one the first step of each episode was left out, and the previous return went on.

    Rewards are 1, the limit 4, the discount 0.9: the returns so far are 1, 1.9, 2.71 and 3.439, repeatedly."""
    env = EnvConfig(f"{ENVS}:limited", options={"limit": 4})
    if mode:
        env = EnvConfig(f"{ENVS}:vector", options={"of": "limited", "mode": mode, "limit": 4})
    settings = PPOSettings(normalize_observations=False, normalize_returns=True, discount=0.9)
    algo = PPO(spec_of(env), settings, 10_000, 2, 11)
    update = RecordingUpdate(algo.policy)
    sampler = make(SerialSampler, env, SamplerConfig(2, 11, 0), algo.policy)
    assert algo.statistics and algo.statistics.return_scale
    with closing(sampler):
        for _ in range(2):  # an episode goes on from one to the other
            algo.statistics.update(sampler.collect(), update)
    num_steps = 18 if mode == "NextStep" else 22  # per environment; in NextStep, every fifth only resets
    returns = [[1, 1.9, 2.71, 3.439][step % 4] for step in range(num_steps)]
    moments = algo.statistics.return_scale.moments
    assert moments.count.item() == 2 * num_steps
    assert moments.mean.item() == pytest.approx(np.mean(returns), rel=1e-12)
    assert moments.variance.item() == pytest.approx(np.var(returns), rel=1e-12)
