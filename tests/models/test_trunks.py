"""Tests of the networks' shapes, sizes and initialization, as given in the papers."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.auxiliary import add_heads
from accel_rl.envs.spaces.conversion import make_spec, parts_of, row_space, to_row, to_rows
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.layers import Sequential
from accel_rl.models.q_network import QNetwork
from accel_rl.models.trunks import MLP, NETWORKS, NestedNet, add_layer_norms, linear, make_trunk, same_padding
from accel_rl.stacks import interleaved

Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete


def flat(nested: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> EnvSpec:
    """Returns the spec of an environment with flattened nested observations."""
    return EnvSpec(row_space(nested), action_space, nested_space=nested)


def atari(height: int, width: int) -> EnvSpec:
    return EnvSpec(Box(0, 255, (height, width), np.uint8), Discrete(6), frame_stack=4)


@pytest.mark.parametrize(
    ("network", "num_parameters"),
    [
        ("nature_half", 425_047),
        ("cule", 866_439),
        # 3 convolutions of 8,224 + 16,416 + 32,832 parameters, then 64 filters of 6x6, 7x7, 11x11, 21x21, and the heads
        ("ga3c_large_4", 57_472 + 256 * 64 * 36 + 256 + 1799),
        ("ga3c_large_3", 57_472 + 256 * 64 * 49 + 256 + 1799),
        ("ga3c_large_2", 57_472 + 256 * 64 * 121 + 256 + 1799),
        ("ga3c_large_1", 57_472 + 256 * 64 * 441 + 256 + 1799),
    ],
)
def test_networks_have_the_papers_number_of_parameters(network: str, num_parameters: int) -> None:
    """Networks have as many parameters as the papers'. test_paper_settings.py has the presets' networks.

    Their ReLUs are computed by the layers before them."""
    policy = ActorCritic(atari(84, 84), NETWORKS[network])
    assert sum(p.numel() for p in policy.parameters()) == num_parameters
    assert type(policy.encoder.trunk.convolutions) is Sequential


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Returns x [..., C] with mean 0 and variance 1 over C, by the textbook formula."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def test_a_single_number_is_a_vector_of_one() -> None:
    """An observation of shape () is a vector of one number."""
    assert make_trunk(EnvSpec(Box(0, 1, ()), Discrete(2)))(torch.zeros(5)).shape == (5, 64)


@pytest.mark.parametrize("dueling", [False, True])
def test_layers_are_normalized_before_their_relu(dueling: bool) -> None:
    """Layer normalization is over channels and before each ReLU, also in hidden layers and streams."""
    torch.manual_seed(0)
    network = QNetwork(atari(36, 40), lambda spec: add_layer_norms(NETWORKS["nature"](spec)), dueling=dueling)
    image = torch.randint(0, 256, (3, 4, 36, 40), dtype=torch.uint8)
    layers: Any = network.encoder.trunk.convolutions if not dueling else network.encoder.trunk
    x = image / 255
    for layer in (module for module in layers if isinstance(module, torch.nn.Conv2d)):
        y = torch.nn.functional.conv2d(x, layer.weight, layer.bias, layer.stride)
        x = normalized(y.permute(0, 2, 3, 1)).relu().permute(0, 3, 1, 2)
    x = x.permute(0, 2, 3, 1).flatten(1)
    if dueling:
        head: Any = network.head
        value, advantage = (stream[-1](normalized(stream[0](x)).relu()) for stream in (head.value, head.advantage))
        expected = value + advantage - advantage.mean(1, keepdim=True)
    else:
        hidden: Any = network.encoder.trunk.hidden
        expected = network.head.output(normalized(hidden(x)).relu())  # type: ignore[union-attr, operator]
    torch.testing.assert_close(network(image), expected, rtol=1e-3, atol=1e-5)


def test_layer_norms_of_vectors_and_first_weights() -> None:
    """Layer normalization precedes each tanh and leaves the initial weights as they are."""
    spec = EnvSpec(Box(-1, 1, (5,)), Discrete(3))
    torch.manual_seed(0)
    trunk: Any = add_layer_norms(MLP(spec))
    torch.manual_seed(0)
    first, _, second, _ = MLP(spec).layers
    x = torch.randn(4, 5)
    expected = normalized(second(normalized(first(x)).tanh())).tanh()
    torch.testing.assert_close(trunk(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_interleaving_changes_the_memory_layout_only(channels: int) -> None:
    rows = torch.randint(0, 256, (9, 5, 7, 6), dtype=torch.uint8)
    rows[0] = 255
    stacks = rows.unfold(0, channels, 1).movedim(-1, 2).flatten(0, 1)  # overlap in memory, as in rollouts
    for image in (stacks, stacks.contiguous(), stacks.to(memory_format=torch.channels_last), stacks[3:4]):
        assert torch.equal(interleaved(image), image)
    columns = rows.unfold(0, channels, 1).movedim(-1, 2)[:, :3]  # without the padding of merged segments
    assert torch.equal(interleaved(columns), columns)
    if 2 <= channels <= 4:
        assert interleaved(stacks).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "size"),
    [("ga3c", (84, 84)), *((name, (25, 31)) for name in ("ga3c", *(f"ga3c_large_{k}" for k in (4, 3, 2, 1))))],
    ids=str,
)
def test_padding_is_tensorflows(name: str, size: tuple[int, int]) -> None:
    """Padding and output sizes equal TensorFlow's, computed window by window."""
    trunk = NETWORKS[name](atari(*size))
    image = torch.randint(0, 256, (2, 4, *size), dtype=torch.uint8)
    x = image / 255
    for layer in trunk.convolutions:
        if not isinstance(layer, torch.nn.Conv2d):
            continue
        out = torch.zeros(2, layer.out_channels, *(-(-n // s) for n, s in zip(x.shape[2:], layer.stride, strict=True)))
        (k, _), (s, _), (H, W) = layer.kernel_size, layer.stride, x.shape[2:]
        padded = torch.zeros(*x.shape[:2], H + 2 * k, W + 2 * k)
        # As TensorFlow documents, half of the missing rows, rounded down, are above the image.
        top, left = (max((out.shape[2 + i] - 1) * s + k - n, 0) // 2 for i, n in enumerate((H, W)))
        padded[:, :, top : top + H, left : left + W] = x
        for i, j in np.ndindex(*out.shape[2:]):
            window = padded[:, :, i * s : i * s + k, j * s : j * s + k]
            out[:, :, i, j] = torch.einsum("nchw,mchw->nm", window, layer.weight.detach()) + layer.bias.detach()
        x = out.relu()
    with torch.no_grad():
        torch.testing.assert_close(trunk.convolutions(image), x.permute(0, 2, 3, 1).flatten(1), atol=1e-4, rtol=1e-4)


def test_padding_by_hand() -> None:
    """Padding equals TensorFlow's "same" rule, and symmetric padding is the convolution's own."""
    assert [same_padding(*case) for case in ((84, 8, 4), (21, 4, 2), (6, 2, 3))] == [(2, 2), (1, 2), (0, 0)]
    trunk = NETWORKS["ga3c"](atari(84, 84))
    # Symmetric padding is the convolution's own, since an extra layer would copy all frames.
    assert trunk.convolutions[0].padding == (2, 2) and isinstance(trunk.convolutions[2], torch.nn.ZeroPad2d)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_initialization_by_fan_in(core: str) -> None:
    """Initialization by fan-in bounds weights and biases by inputs^-0.5; tasks do not change other weights."""
    settings = A2CSettings(
        initialization="fan_in", auxiliary=("pixel_control", "reward_prediction"), core=core, core_size=64
    )
    torch.manual_seed(0)
    policy = A2C(atari(84, 84), settings, 100, 2, 5).policy
    add_heads(policy, settings)
    after = torch.rand(1)
    num_inputs = {
        "encoder.trunk.convolutions.0": 4 * 64,
        "encoder.trunk.convolutions.2": 16 * 16,
        "encoder.trunk.hidden": 2592,
        "policy_head": 64 if core == "lstm" else 256,
        "auxiliary_heads.pixel_control.deconvolution": 32 * 16,
        "auxiliary_heads.reward_prediction.logits": 128,
    }
    parameters = dict(policy.named_parameters())
    for layer, count in num_inputs.items():
        for kind in ("weight", "bias"):
            values, bound = parameters[f"{layer}.{kind}"].detach(), count**-0.5
            assert 0.2 * bound < values.abs().max() <= bound, (layer, kind)
            if values.numel() > 1000:
                assert values.abs().max() > 0.99 * bound and values.std() == pytest.approx(bound / 3**0.5, rel=0.05)
    # Without tasks, everything else is drawn the same.
    torch.manual_seed(0)
    plain = A2C(atari(84, 84), replace(settings, auxiliary=("none",)), 100, 2, 5).policy
    assert torch.equal(torch.rand(1), after)
    assert all(torch.equal(value, parameters[name]) for name, value in plain.named_parameters())


@pytest.mark.parametrize("spec", [atari(84, 84), EnvSpec(Box(-1, 1, (4,)), Discrete(2))], ids=["pixels", "vectors"])
def test_orthogonal_initialization(spec: EnvSpec) -> None:
    """Orthogonal initialization gives each layer orthogonal rows of its gain and zero biases."""
    policy = A2C(spec, A2CSettings(initialization="orthogonal", separate_value=True), 100, 2, 5).policy
    gains = {"policy_head": 0.01, "value_head": 1.0}
    layers = {name: layer for name, layer in policy.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    assert len(layers) == (8 if spec.is_pixels else 6)
    for name, layer in layers.items():
        rows = layer.weight.detach().flatten(1)
        rows = rows if len(rows) <= rows.shape[1] else rows.T
        gain = gains.get(name, 2**0.5)
        torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)), rtol=0, atol=1e-5 * gain)
        assert layer.bias is not None and not layer.bias.any(), name


def test_initialization() -> None:
    """Linear units have the given norm, convolutions keep to Glorot's bound, and biases are zero."""
    layer = linear(50, 7, norm=0.01)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.full((7,), 0.01))
    assert not layer.bias.any()
    convolution = NETWORKS["a3c"](atari(84, 84)).convolutions[0]  # 4 -> 16, 8x8
    bound = (6 / (4 * 64 + 16 * 64)) ** 0.5
    assert 0.95 * bound < convolution.weight.abs().max() <= bound
    assert not convolution.bias.any()


def test_the_features_of_a_network_without_num_features_are_counted() -> None:
    spec = EnvSpec(Box(-1, 1, (3,), np.float32), Discrete(2))
    norm = torch.nn.BatchNorm1d(17)
    policy = ActorCritic(spec, lambda spec: torch.nn.Sequential(torch.nn.Linear(3, 17), norm, torch.nn.ReLU()))
    assert policy.policy_head.in_features == 17
    assert norm.training and norm.num_batches_tracked == 0


def test_a_separate_value_shares_no_layers() -> None:
    """The gradient of a separate value does not reach the policy's layers."""
    spec = EnvSpec(Box(-1, 1, (3,), np.float32), Discrete(2))
    policy = ActorCritic(spec, separate_value=True)
    policy(torch.randn(4, 3))[1].sum().backward()
    assert all(p.grad is None for p in policy.encoder.trunk.parameters())


def test_nested_observations_are_split_by_entry() -> None:
    """Each entry of a nested observation reaches its own network unchanged and gets a gradient."""
    nested = spaces.Dict(
        {
            "back": Box(0, 255, (2, 20, 21), np.uint8),  # channels first
            "front": Box(0, 255, (24, 32, 3), np.uint8),
            "map": Box(0, 255, (7, 7, 3), np.uint8),  # too small for A3C-Net
            "speed": Box(-1, 1, (2,), np.float32),
            "tool": Discrete(3, start=1),
        }
    )
    nested.seed(0)
    net = make_trunk(flat(nested, Discrete(2)))
    assert isinstance(net, NestedNet) and net.num_features == 256 + 256 + 128 + 64
    seen: dict[str, torch.Tensor] = {}
    modules = dict(zip(("back", "front", "map"), (image_net.convolutions for image_net in net.nets), strict=True))
    for name, module in [*modules.items(), ("rest", net.mlp)]:
        module.register_forward_pre_hook(lambda _, inputs, name=name: seen.__setitem__(name, inputs[0]))
    samples = [nested.sample() for _ in range(4)]
    rows = torch.from_numpy(np.stack([to_row(sample, nested) for sample in samples]).astype(np.float32))
    assert net(rows).shape == (4, net.num_features)
    for index, sample in enumerate(samples):
        assert np.allclose(seen["back"][index].numpy(), sample["back"])
        assert np.allclose(seen["front"][index].numpy(), sample["front"].transpose(2, 0, 1))
        assert np.allclose(seen["map"][index].numpy(), sample["map"].transpose(2, 0, 1))
        rest = [*sample["speed"], *(np.arange(1, 4) == sample["tool"])]
        assert np.allclose(seen["rest"][index].numpy(), rest, atol=1e-6)
    rows.requires_grad_()
    net(rows).sum().backward()
    assert rows.grad is not None
    for part in parts_of(nested):
        assert rows.grad[:, part.columns].any(), part.name


@pytest.mark.parametrize("size", [7, 24], ids=["small", "large"])
def test_the_same_picture_in_other_numbers(size: int) -> None:
    """A picture gives the same features in every dtype and range, alone or in a Dict."""
    outputs = []
    picture = np.random.default_rng(0).integers(0, 256, (size, size, 3))
    for low, high, dtype in [(0, 255, np.uint8), (0, 255, np.float32), (0, 1, np.float64), (-1, 1, np.float32)]:
        space = Box(low, high, (size, size, 3), dtype)
        shown = (picture if high == 255 else low + picture / 255 * (high - low)).astype(dtype)
        for observed, declared in [(shown, space), ({"camera": shown}, spaces.Dict({"camera": space}))]:
            spec = make_spec(declared, Discrete(2))
            torch.manual_seed(0)
            outputs.append(make_trunk(spec)(torch.from_numpy(to_rows(observed, spec)[0])))
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("values", "size"), [(range(8), 1), (range(0, 256, 36), 7)], ids=["codes", "greys"])
def test_small_pictures_hold_codes_or_colours(values: range, size: int) -> None:
    """Small uniform pictures of different codes or colors can be told apart."""
    spec = EnvSpec(Box(0, 255, (1, size, size), np.uint8), Discrete(2))
    images = torch.tensor(list(values), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, size, size)
    torch.manual_seed(0)
    net = torch.nn.Sequential(make_trunk(spec), torch.nn.Linear(128, len(images)))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), torch.arange(len(images))).backward()
        optimizer.step()
    assert net(images).argmax(1).tolist() == list(range(len(images)))


def test_unbounded_pictures_stay_as_they_are() -> None:
    spec = make_spec(Box(-np.inf, np.inf, (24, 24, 3), np.float32), Discrete(2))
    picture = torch.randn(2, 3, 24, 24)
    first = make_trunk(spec).convolutions[0]  # type: ignore[index]
    assert torch.equal(first(picture), picture)  # type: ignore[operator]
    assert spec.is_numbers and not make_spec(Box(0, 1, (24, 24, 3)), Discrete(2)).is_numbers
    small = make_trunk(make_spec(Box(-np.inf, np.inf, (7, 7, 3), np.float32), Discrete(2)))
    assert small(picture[:, :, :7, :7]).isfinite().all()


def test_nested_spaces_without_images_need_no_convolutions() -> None:
    """A Dict of numbers is one vector."""
    nested = spaces.Dict({"a": Box(-1, 1, (2,)), "b": spaces.MultiDiscrete([2, 3])})
    net = make_trunk(flat(nested, Discrete(2)))
    assert isinstance(net, MLP) and net.layers[0].in_features == 7
