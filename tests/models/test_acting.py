"""Tests that acting gives plain PyTorch's results, whatever the trunk, head, image and batch."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from accel_rl.envs.spaces.conversion import row_space, to_row
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.q_network import QNetwork
from accel_rl.models.trunks import NETWORKS, ConvNet, add_layer_norms, make_trunk
from accel_rl.rollout import RecurrentInputs
from tests.helpers.plain import assert_acts_as_plain, disturbed, error, images, layouts, outputs, pixels, plain


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


SUPPORT = torch.linspace(-2, 2, 9)
PRECISIONS = [torch.float32, torch.bfloat16]


def nested(space: gymnasium.Space[Any]) -> EnvSpec:
    return EnvSpec(row_space(space), Discrete(3), nested_space=space)


ROOM = spaces.Dict(
    {
        "front": Box(0, 255, (24, 29, 3), np.uint8),
        "map": Box(0, 255, (7, 7, 3), np.uint8),
        "speed": Box(-1, 1, (2,), np.float32),
        "tool": Discrete(3, start=1),
    }
)
SPECS: dict[str, EnvSpec] = {
    "pixels": pixels(20, 20, frame_stack=4),
    "nested": nested(ROOM),
    "vector": EnvSpec(Box(-1, 1, (5,), np.float32), Discrete(3)),
    "matrix": EnvSpec(Box(-1, 1, (3, 2), np.float32), Discrete(3)),
    "discrete": EnvSpec(Discrete(5, start=2), Discrete(3)),
}


def observations(spec: EnvSpec, num_samples: int) -> Tensor:
    """Returns random observations [N, *O] as samplers give them."""
    if spec.nested_space is not None:
        spec.nested_space.seed(0)
        rows = [to_row(spec.nested_space.sample(), spec.nested_space) for _ in range(num_samples)]
        return torch.from_numpy(np.stack(rows).astype(np.float32))
    if spec.is_pixels:
        return images(spec.observation_shape, num_samples)
    spec.observation_space.seed(0)
    return torch.from_numpy(np.stack([spec.observation_space.sample() for _ in range(num_samples)]))


# ---- trunks ----


TRUNKS = [(name, "pixels") for name in NETWORKS] + [(name, space) for name in ("a3c_mlp", "default") for space in SPECS]


@pytest.mark.parametrize(("name", "space"), TRUNKS)
def test_every_trunk(name: str, space: str) -> None:
    """Every trunk gives plain PyTorch's results."""
    spec = SPECS[space]
    network = NETWORKS.get(name, make_trunk)
    if name in ("nature", "nature_half", "cule"):
        spec = pixels(4, 36, 40)
    policy = disturbed(ActorCritic(spec, network))
    for num_samples in (1, 8):
        assert_acts_as_plain(policy, observations(spec, num_samples))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("space", SPECS)
def test_every_trunk_with_layer_norms(space: str, dueling: bool) -> None:
    """Trunks with layer normalization give plain PyTorch's results in every precision."""
    policy = disturbed(QNetwork(SPECS[space], lambda spec: add_layer_norms(make_trunk(spec)), dueling=dueling))
    assert any(isinstance(layer, torch.nn.LayerNorm) for layer in policy.modules())
    assert_acts_as_plain(policy, observations(SPECS[space], 8))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(20, 20), (37, 41)], ids=str)
def test_odd_images_in_every_layout(channels: int, size: tuple[int, int]) -> None:
    """Images of odd sizes give the same results in every memory layout."""
    shape = (channels, *size)
    policy = disturbed(ActorCritic(pixels(*shape)))
    image = images(shape, 5)
    assert_acts_as_plain(policy, image)
    for bf16 in (False, True):
        policy.bf16 = bf16
        expected = outputs(policy, image)
        for layout, same in layouts(image).items():
            assert torch.equal(same, image), layout
            assert all(map(torch.equal, outputs(policy, same), expected)), layout


@pytest.mark.parametrize("num_samples", [1, 2, 3, 8, 16, 64])
def test_every_batch_size(num_samples: int) -> None:
    """Weights prepared for one batch size do not change the results for another."""
    policy = disturbed(ActorCritic(SPECS["pixels"]))
    image = images((4, 20, 20), 64)
    outputs(policy, image[:7])  # prepares weights for another size
    assert_acts_as_plain(policy, image[:num_samples])


GEOMETRIES = [(8, 4, 0), (4, 2, 1), (3, 1, 1), (5, 3, 2), (6, 3, 0), (4, 4, 0), (2, 2, 0), (1, 1, 0)]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_every_geometry_of_the_first_layer(geometry: tuple[int, int, int]) -> None:
    """First layers of any kernel, stride, padding and width give plain PyTorch's results."""
    for width in (24, 25):
        shape = (3, 22, width)

        def network(spec: EnvSpec) -> ConvNet:
            return ConvNet(spec, [(6, *geometry), (5, 3, 2, 1)], num_features=20)

        assert_acts_as_plain(disturbed(ActorCritic(pixels(*shape), network)), images(shape, 4))


# ---- heads, distributions, cores ----


@pytest.mark.parametrize("support", [None, SUPPORT], ids=["values", "atoms"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("space", SPECS)
def test_every_q_network(space: str, dueling: bool, support: Tensor | None) -> None:
    """Every Q-network gives plain PyTorch's results and chooses the same actions."""
    policy = disturbed(QNetwork(SPECS[space], None, support, dueling))
    assert_acts_as_plain(policy, observations(SPECS[space], 6))
    expected = plain(policy).act(observations(SPECS[space], 6), None)[0]
    assert torch.equal(policy.act(observations(SPECS[space], 6), None)[0], expected)


ACTIONS: dict[str, tuple[gymnasium.Space[Any], str]] = {
    "categorical": (Discrete(4), "diagonal"),
    "multi_categorical": (spaces.MultiDiscrete([[2, 3], [4, 5]]), "diagonal"),
    "binary": (spaces.MultiBinary([2, 3]), "diagonal"),
    "diagonal": (Box(-1, 1, (3,)), "diagonal"),
    "spherical": (Box(-1, 1, (2, 2)), "spherical"),
    "composite": (spaces.Tuple([Discrete(4), Box(-1, 1, (2, 2)), spaces.MultiBinary(2)]), "spherical"),
}


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("separate_value", [False, True])
def test_every_distribution(name: str, separate_value: bool) -> None:
    """Policies of every action space give plain PyTorch's results, even with a separate value network."""
    space, gaussian = ACTIONS[name]
    policy = disturbed(ActorCritic(pixels(2, 20, 20, action=space), None, separate_value, gaussian=gaussian))
    image = images((2, 20, 20), 5)
    assert_acts_as_plain(policy, image)
    noise = policy.draw_noise(1, 5, torch.Generator().manual_seed(0))[0]
    for given in (noise, None):
        found, expected = policy.act(image, given), plain(policy).act(image, given)
        assert found[0].shape == (5, *policy.action_shape)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("space", ["pixels", "vector"])
def test_every_core(core: str, space: str) -> None:
    """Recurrent policies give plain PyTorch's results."""
    spec = SPECS[space]
    policy = disturbed(ActorCritic(spec, core=core, core_size=16, previous_inputs=True))
    generator = torch.Generator().manual_seed(1)
    for num_samples in (1, 6):
        inputs = RecurrentInputs(
            torch.randn(num_samples, policy.state_size, generator=generator),
            torch.zeros(num_samples, dtype=torch.int64),
            torch.randn(num_samples, generator=generator),
            torch.arange(num_samples) % 3 == 1,
        )
        assert_acts_as_plain(policy, observations(spec, num_samples), inputs)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_acting_is_the_forward_pass_of_learning(dtype: torch.dtype) -> None:
    """Acting, bootstrapping and learning compute the same outputs, up to rounding."""
    for spec, network in ((SPECS["pixels"], None), (pixels(4, 84, 84), NETWORKS["nature"])):
        policy = disturbed(ActorCritic(spec, network))
        policy.bf16 = dtype == torch.bfloat16
        observation = observations(spec, 6)
        acting = outputs(policy, observation)
        with torch.no_grad():
            target = list(policy.step(observation)[:2])
        learning = list(policy.evaluate(observation))
        for found, other, third in zip(acting, target, learning, strict=True):
            assert error(other, found) <= 4 * torch.finfo(dtype).eps
            assert error(third.detach(), found) <= 4 * torch.finfo(dtype).eps
