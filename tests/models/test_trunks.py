"""Shapes, sizes and initialisation of the networks, as the papers print them."""

import gymnasium
import numpy as np
import pytest
import torch

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.trunks import NETWORKS, conv, linear

Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete


def atari(height: int, width: int) -> EnvSpec:
    return EnvSpec(Box(0, 255, (height, width), np.uint8), Discrete(6), frame_stack=4)


@pytest.mark.parametrize(
    ("network", "shape", "num_parameters"),
    [
        ("a3c", (104, 80), 899_127),
        ("a3c", (84, 84), 677_943),
        ("nature", (104, 80), 3_620_518 + 513),  # a Q network's, and the value head
        ("nature", (84, 84), 1_687_206 + 513),
        ("cule", (84, 84), 866_439),
    ],
)
def test_networks_have_the_papers_number_of_parameters(
    network: str, shape: tuple[int, int], num_parameters: int
) -> None:
    """Would catch a wrong kernel, stride, padding or width."""
    policy = ActorCritic(atari(*shape), NETWORKS[network])
    assert sum(p.numel() for p in policy.parameters()) == num_parameters


def test_pictures_are_scaled_to_one() -> None:
    """Would catch bytes that reach the network as 0 ... 255, or are divided twice."""
    trunk = ActorCritic(atari(104, 80)).trunk
    layer = trunk.convolutions[0]
    picture = torch.randint(0, 256, (2, 4, 104, 80), dtype=torch.uint8)
    expected = torch.nn.functional.conv2d(picture / 255, layer.weight, layer.bias, layer.stride)
    torch.testing.assert_close(layer(picture), expected, atol=1e-5, rtol=1e-5)


def test_initialisation() -> None:
    """Would catch another gain than the original's: units of norm 1, Glorot convolutions, zero biases."""
    layer = linear(50, 7, norm=0.01)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.full((7,), 0.01))
    assert not layer.bias.any()
    convolution = conv(4, 16, 8, 4)
    bound = (6 / (4 * 64 + 16 * 64)) ** 0.5
    assert 0.95 * bound < convolution.weight.abs().max() <= bound
    assert not convolution.bias.any()


@pytest.mark.parametrize(
    "spec",
    [
        EnvSpec(Box(-1, 1, (3,), np.float32), Discrete(2)),
        EnvSpec(Box(-1, 1, (3, 2), np.float32), Box(-1, 1, (2,), np.float32)),
        EnvSpec(Discrete(5, start=2), Discrete(3)),
        EnvSpec(Box(0, 255, (3, 64, 48), np.uint8), Box(-1, 1, (2, 2), np.float32)),
    ],
    ids=["vector", "matrix", "discrete", "picture"],
)
def test_every_space_can_be_acted_in(spec: EnvSpec) -> None:
    """Would catch spaces for which no network or no action of the right shape comes out."""
    policy = ActorCritic(spec)
    observation = np.stack([spec.observation_space.sample() for _ in range(5)])
    noise = policy.draw_noise(1, 5, torch.Generator())[0]
    for given in (noise, None):
        action, recorded = policy.act(torch.from_numpy(observation), given)
        assert action.shape == (5, *spec.action_shape)
        assert recorded["value"].shape == (5,)


def test_a_network_without_num_features_is_tried_out() -> None:
    """Would catch a demand on users' networks that the documentation doesn't make."""
    spec = EnvSpec(Box(-1, 1, (3,), np.float32), Discrete(2))
    policy = ActorCritic(spec, lambda spec: torch.nn.Sequential(torch.nn.Linear(3, 17), torch.nn.ReLU()))
    assert policy.policy_head.in_features == 17


def test_separate_value_shares_nothing() -> None:
    """Would catch a value loss that still reaches the policy's layers."""
    spec = EnvSpec(Box(-1, 1, (3,), np.float32), Discrete(2))
    policy = ActorCritic(spec, separate_value=True)
    policy(torch.randn(4, 3))[1].sum().backward()
    assert all(p.grad is None for p in policy.trunk.parameters())
