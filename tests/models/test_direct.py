"""Tests that direct calls of small networks give their modules' results bit for bit."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.q_network import QNetwork
from accel_rl.models.trunks import MLP, NETWORKS, add_layer_norms, make_trunk
from accel_rl.updates.flat import FlatParameters
from tests.helpers.plain import disturbed

VECTOR = Box(-1, 1, (5,), np.float32)
ACTIONS = {
    "discrete": Discrete(3),
    "many": Discrete(40),
    "multi": MultiDiscrete([[2, 3], [4, 5]]),
    "box": Box(-1, 1, (3,)),
    "number": Box(-1, 1, ()),
    "tuple": Tuple([Discrete(4), MultiBinary(2)]),
}
OBSERVATIONS = {
    "vector": VECTOR,
    "matrix": Box(-1, 1, (3, 2), np.float32),
    "doubles": Box(-1, 1, (4,), np.float64),
    "bytes": Box(0, 255, (4,), np.uint8),
    "flags": MultiBinary(4),
    "number": Box(-1, 1, (), np.float32),
}


def observations(space: gymnasium.Space[Any], num_samples: int = 8) -> Tensor:
    space.seed(1)
    return torch.from_numpy(np.stack([np.asarray(space.sample()) for _ in range(num_samples)]))


def act_by_modules(policy: Any, observation: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
    """Returns the action and the outputs that a policy's modules compute, called one by one."""
    with torch.inference_mode():
        output, value, _ = (each if each is None else each.clone() for each in policy.step(observation))
    with torch.no_grad():
        if isinstance(policy, QNetwork):
            q = output
            action = q.argmax(-1) if noise is None else noise.where(noise >= 0, q.argmax(-1))
            return (action, value) if policy.records_value else (action,)
        parameters, distribution = output, policy.distribution
        action = distribution.mode(parameters) if noise is None else distribution.sample(parameters, noise)
        return action.reshape(-1, *policy.action_shape), parameters, value


def act(policy: Any, observation: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
    action, outputs, _ = policy.act(observation, noise)
    return action, *outputs.values()


def assert_same(policy: Any, observation: Tensor) -> None:
    noise = policy.draw_noise(1, len(observation), torch.Generator().manual_seed(0))[0]
    for given in (noise, None):
        for found, expected in zip(
            act(policy, observation, given), act_by_modules(policy, observation, given), strict=True
        ):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


def acts_directly(policy: Any) -> bool:
    return policy._direct.get(policy, policy._make_direct) is not None


def make_policy(space: gymnasium.Space[Any] = VECTOR, **options: Any) -> ActorCritic:
    torch.manual_seed(0)
    return disturbed(ActorCritic(EnvSpec(space, options.pop("action", Discrete(3))), **options))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "normalize"),
    [*((name, False) for name in OBSERVATIONS), *((name, True) for name in OBSERVATIONS if name != "flags")],
)
def test_every_observation(name: str, normalize: bool) -> None:
    """Vectors of any dtype and shape give the modules' results, even after the moments have changed."""
    space = OBSERVATIONS[name]
    policy, observation = make_policy(space, normalize=normalize, separate_value=True), observations(space)
    assert acts_directly(policy) == bool(space.shape)
    assert_same(policy, observation)
    for _ in range(2 if policy.norm else 0):
        policy.norm.update(observation[:3], lambda value: value)  # type: ignore[union-attr]
        assert_same(policy, observation)


def test_limits_of_normalized_observations() -> None:
    """Numbers far from the mean are clipped, and nan stays nan."""
    policy = make_policy(normalize=True)
    assert policy.norm
    policy.norm.update(observations(VECTOR), lambda value: value)
    observation = torch.tensor([[1e6, -1e6, torch.inf, -torch.inf, 0.1], [torch.nan, 0, 1, 2, 3]])
    with torch.inference_mode():
        found, expected = policy.norm.direct(observation), policy.norm(observation)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert found[0, :4].tolist() == [10, -10, 10, -10]


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_space(name: str) -> None:
    """Actions and outputs of every distribution are those of the modules."""
    policy = make_policy(action=ACTIONS[name])
    assert acts_directly(policy)
    assert_same(policy, observations(VECTOR))


@pytest.mark.parametrize("network", [None, NETWORKS["wide"], lambda spec: add_layer_norms(make_trunk(spec))])
@pytest.mark.parametrize("records_value", [False, True])
def test_q_networks(network: Any, records_value: bool) -> None:
    """Q-networks choose the actions that their modules choose."""
    policy = disturbed(QNetwork(EnvSpec(VECTOR, Discrete(3)), network, epsilon_eval=0.5, records_value=records_value))
    assert acts_directly(policy)
    for policy.epsilon in (0.0, 0.5):
        assert_same(policy, observations(VECTOR))


def test_what_is_left_to_modules() -> None:
    """Networks that direct calls do not support act through their modules."""
    spec, support = EnvSpec(VECTOR, Discrete(3)), torch.linspace(-1, 1, 5)
    large = lambda spec: MLP(spec, (512, 512), nn.ReLU)  # noqa: E731
    policies = [
        QNetwork(spec, dueling=True), QNetwork(spec, support=support), QNetwork(spec, num_quantiles=5),
        QNetwork(spec, large), ActorCritic(spec, large), ActorCritic(spec, lambda spec: nn.Linear(5, 8)),
    ]  # fmt: skip
    for policy in policies:
        assert not acts_directly(policy)
        assert_same(policy, observations(VECTOR))


def replace(policy: ActorCritic) -> None:
    policy.policy_head = deepcopy(policy.policy_head)


def replace_layer(policy: ActorCritic) -> None:
    policy.encoder.trunk.layers[2] = nn.Linear(64, 64)


def replace_parameters(policy: ActorCritic) -> None:
    for layer in policy.encoder.trunk.layers[::2]:
        layer.weight = nn.Parameter(layer.weight.detach() * 2)


CHANGES: list[Callable[[ActorCritic], Any]] = [FlatParameters, replace, replace_layer, replace_parameters, disturbed]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("copy", [lambda policy: policy, deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_changes_of_the_network(change: Callable[[ActorCritic], Any], copy: Callable[[Any], Any]) -> None:
    """A policy, or a copy of one that has acted, acts by its current modules and parameters."""
    policy, observation = make_policy(normalize=True), observations(VECTOR)
    act(policy, observation, None)
    other = copy(policy)
    change(other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    other.norm.update(observation, lambda value: value)
    assert_same(other, observation)
    assert_same(policy, observation)


def test_hooks_are_called() -> None:
    """Hooks added after the first act are called, including global ones."""
    policy, observation, seen = make_policy(), observations(VECTOR), list[nn.Module]()
    act(policy, observation, None)
    layer = policy.encoder.trunk.layers[0]
    handle = layer.register_forward_hook(lambda module, inputs, result: seen.append(module))
    act(policy, observation, None)
    assert seen == [layer]
    handle.remove()
    with torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, result: seen.append(module)):
        act(policy, observation, None)
    assert policy.value_head in seen[1:]


def test_subclasses_are_asked() -> None:
    """A subclass that overrides `forward` acts by its own version."""

    class Doubled(ActorCritic):
        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            parameters, value = super().forward(observation)
            return parameters, 2 * value

    policy, observation = Doubled(EnvSpec(VECTOR, Discrete(3))), observations(VECTOR)
    assert not acts_directly(policy)
    assert_same(policy, observation)
