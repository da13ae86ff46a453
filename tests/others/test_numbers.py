"""Mistakes of other frameworks in arithmetic: masks, normalization, clipped actions, odd spaces."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from accel_rl.algos.dqn import DQN
from accel_rl.algos.ppo import PPO, PPOSettings
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.models.distributions import Categorical, MultiCategorical
from accel_rl.models.masks import disallow
from accel_rl.models.normalize import ObservationNorm
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.updates.optimizers import Adam
from tests.helpers.samplers import TOYS, closing, make, spec_of
from tests.helpers.updates import RecordingUpdate

ENVS = "tests.others.envs"
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_multi", [False, True])
def test_one_of_5000_actions_is_allowed(is_multi: bool, dtype: torch.dtype) -> None:
    """sb3-contrib issues 221 and 247: masked probabilities of many actions failed the check that they add up to 1.

    The one allowed action has log-probability 0, entropy 0 and no gradient, whatever its logit, and is always drawn."""
    size, chosen = 5000, 3210
    output = (50 * torch.randn(64, size, generator=torch.Generator().manual_seed(1))).to(dtype)
    output[:, chosen] = torch.linspace(-50, 50, 64)
    output.requires_grad_()
    allowed = torch.arange(size) == chosen
    nums = [2000, 3000] if is_multi else [size]
    allowed[7] = is_multi  # the first of two choices has its own
    parameters = disallow(output, allowed)
    distribution: Any = MultiCategorical(nums, is_masked=True) if is_multi else Categorical(size, is_masked=True)
    noise = torch.rand(64, *distribution.noise_shape)
    noise[0], noise[1] = 0.0, 1.0 - 2**-24
    action = distribution.sample(parameters.detach(), noise)
    expected = torch.tensor([7, chosen - 2000]) if is_multi else torch.tensor(chosen)
    assert (action == expected).all() and (distribution.mode(parameters) == expected).all()
    log_probability, entropy = distribution.log_probability(parameters, action), distribution.entropy(parameters)
    assert not log_probability.any() and not entropy.any()
    (log_probability + entropy).sum().backward()
    assert output.grad is not None and not output.grad.any()


def test_some_of_5000_actions_are_allowed() -> None:
    """Masked log-probabilities equal those of the allowed actions alone in float64, with logits of up to 50."""
    generator = np.random.default_rng(2)
    logits, allowed = generator.uniform(-50, 50, 5000), generator.random(5000) < 0.01
    own = logits[allowed] - logits[allowed].max()
    log_p = own - math.log(np.exp(own).sum())
    parameters = disallow(torch.tensor(logits, dtype=torch.float32), torch.from_numpy(allowed)).expand(len(own), -1)
    distribution = Categorical(5000, is_masked=True)
    found = distribution.log_probability(parameters, torch.from_numpy(np.flatnonzero(allowed)))
    np.testing.assert_allclose(found.numpy(), log_p, rtol=1e-5, atol=1e-5)
    assert distribution.entropy(parameters)[0].item() == pytest.approx(-(np.exp(log_p) * log_p).sum(), rel=1e-5)


@pytest.mark.parametrize("normalize_advantage", ["none", "rollout", "minibatch"])
def test_minibatches_of_one_sample(normalize_advantage: str) -> None:
    """Stable-Baselines3 issues 325 and 440: the standard deviation of one advantage is nan, and so was the policy.

    One advantage minus its mean is 0; the value is learned all the same."""
    settings = PPOSettings(epochs=2, minibatches=12, normalize_advantage=normalize_advantage)
    algo = PPO(spec_of(COUNTING), settings, 10_000, 4, 3)
    sampler = make(SerialSampler, COUNTING, SamplerConfig(4, 3, 0), algo.policy)
    update = RecordingUpdate(algo.policy, Adam())
    before = algo.policy.value_head.weight.clone()
    with closing(sampler):
        stats = algo.learn(sampler.collect(), update)
    assert [call.num_samples.item() for call in update.calls] == [1] * 24
    assert all(values.isfinite().all() for values in [*algo.policy.parameters(), *stats.values()])
    assert not torch.equal(algo.policy.value_head.weight, before)
    advantages = torch.stack([call.batch[1].advantage for call in update.calls])
    assert (advantages == 0).all() == (normalize_advantage == "minibatch")


def test_a_constant_and_an_offset_of_1e8() -> None:
    """sinergym pull request 422: the stored variance was negative, so observations became nan.

    An entry that never changes becomes 0; one far from 0 agrees with numpy in float64, over all batches at once."""
    generator = np.random.default_rng(0)
    data = np.stack([np.full(6000, 7.3), 1e8 + 1e3 * generator.normal(size=6000), generator.normal(size=6000)], 1)
    data = data.astype(np.float32)
    norm = ObservationNorm(EnvSpec(spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)))
    for batch in np.split(data, 60):
        norm.update(torch.from_numpy(batch), lambda sums: sums)
    exact = data.astype(np.float64)
    expected = (exact[:100, 1:] - exact[:, 1:].mean(0)) / exact[:, 1:].std(0)
    found = norm(torch.from_numpy(data[:100])).numpy()
    np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-5, atol=1e-5)
    assert (np.abs(found[:, 0]) < 1e-2).all()


def test_actions_are_clipped_outside_and_judged_as_they_were_chosen() -> None:
    """CleanRL issue 240: with clipped actions in the buffer, their log-probabilities were wrong, and PPO ran poorly.

    The environment observes what arrives; the density is the Gaussian's, in float64, of the action in the rollout."""
    env = EnvConfig(f"{TOYS}:BoxAction")  # with bounds of -1 and 2
    algo = PPO(EnvSpec(spaces.Box(-100, 100, (2,)), spaces.Box(-1, 2, (2,))), PPOSettings(), 100, 4, 25)
    with torch.no_grad():
        algo.policy.distribution.log_std.fill_(0.7)
    sampler = make(SerialSampler, env, SamplerConfig(4, 25, 0), algo.policy)
    with closing(sampler), torch.no_grad():
        rollout = sampler.collect()
        density = algo.prepare(rollout)[1].old_log_probability.reshape(25, 4)
    action = rollout.action.double().numpy()
    assert (action > 2).any() and (action < -1).any()
    np.testing.assert_array_equal(rollout.observation_rows[1:], action.clip(-1, 2))
    mean, log_std = rollout.policy_outputs["distribution"].double().chunk(2, -1)
    z = (action - mean.numpy()) / np.exp(log_std.numpy())
    expected = (-(z**2) / 2 - log_std.numpy() - math.log(2 * math.pi) / 2).sum(-1)
    np.testing.assert_allclose(density, expected, rtol=1e-4, atol=1e-4)


def test_n_steps_are_discounted_as_the_algorithm_says() -> None:
    """Stable-Baselines3 issue 2274: a replay of n steps had its own discount or number of steps.

    Rewards of 1 with a discount of 0.9: 1 + 0.9 + 0.81 = 2.71, then 0.9^3 = 0.729 times the value that follows."""
    env = EnvConfig(f"{ENVS}:limited", options={"limit": 1000})
    settings = DQN.Settings(n_step=3, discount=0.9, warmup_steps=24, batch_size=8, replay_size=400)
    algo = DQN(spec_of(env), settings, 1000, 4, 8)
    update = RecordingUpdate(algo.policy)
    algo.setup(1, RecordingUpdate)
    sampler = make(SerialSampler, env, SamplerConfig(4, 8, 0), algo.policy)
    with closing(sampler):
        for _ in range(2):
            algo.learn(sampler.collect(), update)
    assert update.batches
    for batch in update.batches:
        assert batch.return_.tolist() == pytest.approx([2.71] * 8)
        assert batch.bootstrap.tolist() == pytest.approx([0.729] * 8)
        assert torch.equal(batch.next_observation, batch.observation + 3)


@pytest.mark.parametrize("mode", [None, "NextStep", "SameStep", "Disabled"])
def test_integers_scalars_and_nothing_in_nested_dicts(mode: str | None) -> None:
    """Gymnasium issue 1164: a nested Dict with integers of 64 bits, a Box without axes and an empty one.

    A row has the parts in the order of their names, choices one-hot: counts, inner/choice, level."""
    env = EnvConfig(f"{ENVS}:Parts")
    if mode:
        env = EnvConfig(f"{ENVS}:vector", options={"of": "Parts", "mode": mode})
    sampler = make(SerialSampler, env, SamplerConfig(2, 5, 0))
    with closing(sampler):
        rows = sampler.collect().observation_rows
    steps = [0, 1, 2, 3, 4, 5 if mode == "NextStep" else 0]
    expected = [[step, -1000 * step, *(float(step % 3 == k) for k in range(3)), step / 4] for step in steps]
    assert rows.tolist() == [[row] * 2 for row in expected]
