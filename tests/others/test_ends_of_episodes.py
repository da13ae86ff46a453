"""Mistakes of other frameworks at the ends of episodes: bootstrapping, seeds and options of the resets that follow."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accel_rl.algos.batches import add_final_values, bootstrap
from accel_rl.algos.returns import discounted_return, generalized_advantage
from accel_rl.envs.spec import EnvConfig
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from tests.helpers.samplers import closing, make, spec_of

HERE = "tests.others.envs"
MODES = [None, "NextStep", "SameStep", "Disabled"]
T, B, DISCOUNT = 14, 2, 0.9


def env_of(name: str, mode: str | None, **options: Any) -> EnvConfig:
    """Returns single environments, or batches with this autoreset mode."""
    if mode is None:
        return EnvConfig(f"{HERE}:{name}", options=options)
    return EnvConfig(f"{HERE}:vector", options={"of": name, "mode": mode, **options})


class Identity(nn.Module):
    """A network whose features are its observations."""

    num_features = 1

    def __init__(self, spec: Any):
        super().__init__()

    def forward(self, observation: Tensor) -> Tensor:
        return observation


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_is_bootstrapped_from_the_last_observation(mode: str | None) -> None:
    """mujoco_playground issue 305: the value after a time limit was that of the next episode's first observation.

    Rewards are 1, the limit 4, the discount 0.9; the value is 2.5 times the step, so 10 at the limit and 0 after the
    reset. An endless series of rewards of 1 is worth 1 / (1 - 0.9) = 10, so every return before a limit is 10 as well;
    bootstrapped from the reset, they would be 3.439, 2.71, 1.9 and 1."""
    env = env_of("limited", mode, limit=4)
    policy = ActorCritic(spec_of(env), network=Identity)
    with torch.no_grad():
        policy.value_head.weight.fill_(2.5)
        policy.value_head.bias.zero_()
    sampler = make(SerialSampler, env, SamplerConfig(B, T, 0), policy)
    with closing(sampler), torch.no_grad():
        rollout = sampler.collect()
        reward, done, last = bootstrap(policy, add_final_values(policy, rollout, DISCOUNT), DISCOUNT)
        returns = discounted_return(reward, done, last, DISCOUNT)
        advantage, _ = generalized_advantage(reward, rollout.policy_outputs["value"], done, last, DISCOUNT, 1.0)
    is_last = rollout.observation_rows[:T, :, 0] == 3
    assert rollout.truncated.sum() >= 2 * B and torch.equal(rollout.truncated, is_last)
    before_a_limit = rollout.valid & is_last.flip(0).cumsum(0).flip(0).bool()
    torch.testing.assert_close(returns[before_a_limit], torch.full_like(returns[before_a_limit], 10.0))
    step = rollout.observation_rows[:T, :, 0]
    torch.testing.assert_close(advantage[before_a_limit], (10 - 2.5 * step)[before_a_limit])


@pytest.mark.parametrize("mode", MODES)
def test_only_the_first_reset_has_a_seed(mode: str | None) -> None:
    """Stable-Baselines3 issue 1790: the arguments of a reset did not reach the automatic ones; a proposed fix would
    have given them all the same seed, so all episodes would have begun alike. Here the first reset has a seed, none has
    options, and all others have neither."""
    sampler = make(SerialSampler, env_of("Resets", mode), SamplerConfig(B, T, 0))
    with closing(sampler):
        seen = sampler.collect().observation_rows
    numbers = seen[:, 0, 2].tolist()  # resets with neither, which are the episode's number
    assert numbers == sorted(numbers) and numbers[0] == 0 and numbers[-1] >= 4
    assert (seen[..., 0] == 1).all() and not seen[..., 1].any()


@pytest.mark.parametrize("mode", MODES)
def test_lengths_and_scores_count_each_step_once(mode: str | None) -> None:
    """Gymnasium issues 1017 and 1624: statistics counted the step that only resets, or dropped the first one.

    With a limit of 4 and rewards of 1, every episode has length 4 and score 4, in training and in evaluations."""
    env = env_of("limited", mode, limit=4)
    sampler = make(SerialSampler, env, SamplerConfig(B, T, 0))
    with closing(sampler):
        games = [*sampler.collect().games, *sampler.collect().games]
        judged = sampler.evaluate(GamesToPlay(6), 0, greedy=False)
    num_steps = 2 * T * B
    assert num_steps // 5 - B <= len(games) <= num_steps // 4
    assert {(game.score, game.length) for game in [*games, *judged]} == {(4.0, 4)} and len(judged) == 6
