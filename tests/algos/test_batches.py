"""Batches of a rollout hold each step once with its targets, and each sequence with its initial state."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from accel_rl.algos.batches import minibatch, random_orders, whole_batch
from accel_rl.envs import EnvConfig
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import Batch, Rollout
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.samplers import TOYS, make, spec_of

COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})
T, B = 5, 6
CORE = {"core": "lstm", "core_size": 8, "previous_inputs": True}


class Numbers(NamedTuple):
    """Targets that hold the indices of each step's sample and environment."""

    sample: Tensor
    env: Tensor


TARGETS = Numbers(torch.arange(T * B).view(T, B), torch.arange(B).expand(T, B))


def collect(**network: Any) -> Rollout:
    """Collects a rollout that begins mid-episode and has invalid steps."""
    torch.manual_seed(0)
    policy = ActorCritic(spec_of(COUNTING), **network)
    sampler = make(SerialSampler, COUNTING, SamplerConfig(B, T, 2), policy, reset_mode="wait")
    sampler.collect()
    rollout: Rollout = sampler.collect()
    assert 0 < rollout.valid.sum() < T * B
    return rollout


def three_parts(rollout: Rollout, order: Tensor) -> list[tuple[Batch, Numbers, Tensor]]:
    return [minibatch(rollout, TARGETS, chosen) for chosen in order.chunk(3)]


def test_samples_hold_each_step_once() -> None:
    """Minibatches in random order hold each step once, and all fields of a row belong to the same sample."""
    rollout = collect()
    orders = random_orders(rollout, 3)
    assert orders.shape == (3, T * B) and len({tuple(order.tolist()) for order in orders}) == 3
    for order in orders:
        assert order.sort().values.tolist() == list(range(T * B))
        parts = three_parts(rollout, order)
        assert [len(batch.action) for batch, *_ in parts] == [10, 10, 10]
        assert torch.equal(torch.cat([targets.sample for _, targets, _ in parts]), order)
        for batch, targets, num_samples in parts:
            assert num_samples == batch.valid.sum()
            assert type(targets) is Numbers and torch.equal(targets.env, targets.sample % B)
            assert batch.recurrent_inputs is None
            for name, whole in (
                ("observation", rollout.observations(0, T)),
                ("action", rollout.action),
                ("valid", rollout.valid),
            ):
                assert torch.equal(getattr(batch, name), whole.flatten(0, 1)[targets.sample]), name


@pytest.mark.parametrize("whole", [False, True])
def test_sequences_hold_each_environment_once(whole: bool) -> None:
    """Minibatches of sequences hold each environment's whole sequence once, with its initial state."""
    rollout = collect(**CORE)
    inputs = rollout.recurrent_inputs
    assert inputs is not None and inputs.state[0].any(1).sum() > 1
    (order,) = random_orders(rollout, 1)
    assert order.sort().values.tolist() == list(range(B))
    parts = [whole_batch(rollout, TARGETS)] if whole else three_parts(rollout, order)
    found = []
    for batch, targets, num_samples in parts:
        assert num_samples == batch.valid.sum()
        envs = targets.env[0]
        assert targets.env.shape == (T, B if whole else 2) and (targets.env == envs).all()
        assert torch.equal(targets.sample, TARGETS.sample[:, envs])
        found += envs.tolist()
        assert torch.equal(batch.observation, rollout.observations(0, T)[:, envs])
        assert torch.equal(batch.action, rollout.action[:, envs])
        assert torch.equal(batch.valid, rollout.valid[:, envs])
        assert batch.recurrent_inputs is not None
        assert torch.equal(batch.recurrent_inputs.state, inputs.state[0, envs])
        for name in ("previous_action", "previous_reward", "is_first"):
            assert torch.equal(getattr(batch.recurrent_inputs, name), getattr(inputs, name)[:T, envs]), name
    assert found == (list(range(B)) if whole else order.tolist())
