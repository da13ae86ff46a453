"""Tests of what learners compute from rollouts with replaced environments, against sums written out step by step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.returns import discounted_return, generalized_advantage, vtrace
from accel_rl.envs import EnvConfig
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.helpers.samplers import TOYS, closing, copy, make_kind

pytestmark = pytest.mark.multiprocess

DISCOUNT, GAE_LAMBDA = 0.9, 0.7
PONG = EnvConfig("pong", options={"max_episode_steps": 9, "noop_max": 3, "frame_shape": (16, 16)}, simulator="ale")


def value_of(observation: Tensor) -> Tensor:
    """Returns a value for each [game, step], never 0, so that each bootstrap shows."""
    return 100.0 + 10 * observation[..., 0] + observation[..., 1] ** 2


def expected_advantage(rollout: Rollout, gae_lambda: float) -> Tensor:
    """Returns generalized advantages [T, B], computed backwards; the recursion stops wherever the data does.

    A value is discounted once for each step between it and the reward before it, however the episode was cut short."""
    T, B = rollout.reward.shape
    value = value_of(rollout.observation_rows)
    finals = {
        (int(step), int(env)): float(value_of(seen))
        for step, env, seen in zip(rollout.final_step, rollout.final_env, rollout.final_observation, strict=True)
    }
    advantage = torch.zeros(T, B)
    for env in range(B):
        for t in reversed(range(T)):
            is_last = t == T - 1 or not rollout.valid[t + 1, env]
            if rollout.terminated[t, env]:
                after, later = 0.0, 0.0
            elif (t, env) in finals and rollout.valid[t, env] and not is_last:
                after, later = finals[t, env], 0.0
            else:  # the row after this step is the episode's last known one, or the next step goes on from it
                after = finals.get((t, env), float(value[t + 1, env]))
                later = 0.0 if is_last else float(advantage[t + 1, env])
            delta = float(rollout.reward[t, env]) + DISCOUNT * after - float(value[t, env])
            advantage[t, env] = delta + DISCOUNT * gae_lambda * later
    return advantage


def assert_learned_right(rollout: Rollout) -> int:
    """Checks returns, GAE, V-trace and n-step Q at every valid step; returns how many episodes a loss has cut short."""
    T, valid = rollout.horizon, rollout.valid
    value = value_of(rollout.observation_rows)
    reward = rollout.reward.clone()  # as in every learner, see accel_rl/algos/returns.py
    reward[rollout.final_step, rollout.final_env] += DISCOUNT * value_of(rollout.final_observation)
    target = value[:T] + expected_advantage(rollout, 1.0)
    close = {"rtol": 1e-5, "atol": 1e-3}  # values of about 100 in float32

    returns = discounted_return(reward, rollout.done, value[T], DISCOUNT)  # n-step Q bootstraps with its best action
    torch.testing.assert_close(returns[valid], target[valid], **close)
    advantage, _ = generalized_advantage(reward, value[:T], rollout.done, value[T], DISCOUNT, GAE_LAMBDA)
    torch.testing.assert_close(advantage[valid], expected_advantage(rollout, GAE_LAMBDA)[valid], **close)
    on_policy = torch.zeros_like(reward)
    corrected, _ = vtrace(reward, value[:T], rollout.done, value[T], on_policy, DISCOUNT, 1.0, 1.0)
    torch.testing.assert_close(corrected[valid], target[valid], **close)
    ends_here = valid[:-1] & ~valid[1:]
    assert (rollout.done[:-1] | ~ends_here).all()
    assert not (rollout.done & ~valid).any()
    return int((ends_here & rollout.truncated[:-1]).sum())


def sampler_of(kind: str, tmp_path: Path, how: str, at_step: int, window: int) -> Any:
    options = {"how": how, "at_step": at_step, "lengths": [9, -6, 4], "once": str(tmp_path / "once")}
    config = SamplerConfig(num_envs=4, horizon=4, num_workers=2, window=window, env_timeout_s=60)
    return make_kind(kind, EnvConfig(f"{TOYS}:Broken", options=options), config, restart_on_error=True)


@pytest.mark.parametrize(
    ("kind", "how", "at_step"),  # the first of a rollout, or one in the middle
    [
        ("serial", "raise", 5),
        ("serial", "raise", 7),
        ("alternating", "kill", 5),
        ("device", "kill", 7),
    ],
)
def test_the_step_before_a_lost_one_is_bootstrapped_with_one_discount(
    kind: str, how: str, at_step: int, tmp_path: Path
) -> None:
    """The step before a lost one is worth r + discount V, in rollouts and in windows."""
    window = 7
    sampler = sampler_of(kind, tmp_path, how, at_step, window)
    recent: list[Rollout] = []

    def on_step(t: int) -> None:
        recent.append(copy(sampler.recent(t, min(window, len(recent)), slice(0, 4))))

    with closing(sampler):
        rollouts = [copy(sampler.collect(StepHook(on_step))) for _ in range(6)]
        assert sum(map(assert_learned_right, rollouts)) == (0 if at_step == 5 else sampler.num_restarts)
        assert sum(map(assert_learned_right, recent[1:])) > 0
        assert sampler.num_restarts > 0 and sum(int((~rollout.valid).sum()) for rollout in rollouts) > 0


def test_a_rollout_without_hooks_is_bootstrapped_too(tmp_path: Path) -> None:
    """The step before a lost one is truncated in rollouts without step hooks, too."""
    sampler = sampler_of("serial", tmp_path, "raise", at_step=7, window=0)
    assert sum(assert_learned_right(copy(sampler.collect())) for _ in range(6)) == sampler.num_restarts > 0
