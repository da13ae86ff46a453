"""Tests that `accelerate` changes only the speed of a user's network."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from accel_rl.envs.spaces.conversion import row_space
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.layers import Conv2d, Linear, accelerate, unaccelerated
from accel_rl.models.q_network import QNetwork
from accel_rl.models.trunks import NETWORKS, make_trunk

FRAMES = EnvSpec(Box(0, 255, (84, 84), np.uint8), Discrete(6), frame_stack=4)


class Residual(nn.Module):
    """Calls the layers of an nn.Sequential separately, and also uses the input of a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())
        self.out = nn.Linear(6 * 12 * 10, 40)

    def forward(self, x: Tensor) -> Tensor:
        before = self.layers[0](x)
        x = self.layers[1:](before)
        return self.out((x + before).flatten(1))  # type: ignore[no-any-return]


class ByHand(nn.Module):
    """Has one ReLU for all layers, a layer that is used twice, and a linear layer for sequences [N, T, F]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.wide = nn.Linear(80, 300)
        self.out = nn.Linear(300 * 12, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        x = self.act(self.second(self.second(x)))  # [N, 8, 12, 10]
        x = self.act(self.wide(x.transpose(1, 2).flatten(2)))  # [N, 12, 80]
        return self.out(x.flatten(1))  # type: ignore[no-any-return]


class MyConv(nn.Conv2d):
    """A convolution with a forward pass of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class Doubled(nn.Sequential):
    """Runs each layer and doubles its result."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = 2 * layer(x)
        return x


class Unbatched(nn.Module):
    """Convolves one image [C, H, W] at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(image) for image in x])


def with_hooks() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU())
    network[0].register_forward_hook(lambda module, inputs, y: y - 0.3)
    network[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    network[5].register_forward_hook(lambda module, inputs, y: inputs[0] + y)
    return network


def with_weight_norm() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.Flatten(), norm(nn.Linear(640, 40)), nn.ReLU())


def shared_layers() -> nn.Module:
    layer, relu = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()
    return nn.Sequential(layer, relu, nn.Conv2d(3, 3, 3, padding=1), relu, layer, nn.Tanh(), relu)


def tied_weights() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(360, 360), nn.ReLU(), nn.Linear(360, 360, bias=False), nn.Tanh())
    network[3].weight = network[1].weight
    return network


def conv(*arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    """Returns a function that makes a small network around one convolution of 3 channels."""
    return lambda: nn.Sequential(nn.Conv2d(3, *arguments, **options), nn.ReLU(), nn.Flatten())


USERS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # network, number of layers that are replaced
    "sequential": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(640, 40), nn.ReLU()),
        2,
    ),
    "no ReLU": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(640, 40)), 2),
    "small linear layers": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(360, 9), nn.ReLU(), nn.Linear(9, 4)), 0),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), 1),
    "by hand": (ByHand, 4),
    "residual": (Residual, 3),
    "a sequential of its own": (lambda: Doubled(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), 2),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Sequential(nn.ReLU())), 1),
    "unbatched": (Unbatched, 1),
    "a class of its own": (lambda: nn.Sequential(MyConv(3, 4, 3), nn.ReLU()), 0),
    "one dimension": (lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 8, 5, 2), nn.ReLU()), 0),
    "groups": (conv(6, 3, groups=3), 0),
    "dilated": (conv(6, 3, dilation=2), 0),
    "padding 'same'": (conv(6, 3, padding="same"), 0),
    "reflecting": (conv(6, 3, padding=1, padding_mode="reflect"), 0),
    "no bias": (conv(6, 3, bias=False), 1),
    "rectangular": (conv(6, (3, 2), stride=(2, 1), padding=(0, 1)), 1),
    "shared": (shared_layers, 1),
    "tied": (tied_weights, 2),
    "hooks": (with_hooks, 1),
    "weight norm": (with_weight_norm, 0),
    "frozen": (lambda: frozen(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))), 2),
    "in float64": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).double(), 1),
}


def frozen(network: Any) -> nn.Module:
    """Freezes everything but the last layer's weight."""
    network.requires_grad_(False)
    network[-1].weight.requires_grad_()
    return network  # type: ignore[no-any-return]


def results(network: nn.Module, image: Tensor, bf16: bool) -> list[Tensor]:
    """Returns the outputs of acting and of learning, all gradients, and the buffers."""
    network = deepcopy(network)  # keeps the caller's running statistics
    image = image.to(next(network.parameters()).dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        with torch.inference_mode():
            found = [network(image)]
        with torch.no_grad():
            found.append(network(image))
        inputs = image.clone().requires_grad_()
        found.append(network(inputs))
    output = found[-1].float()
    slope = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    (output * slope).sum().backward()
    assert inputs.grad is not None
    found += [inputs.grad, *(parameter.grad for parameter in network.parameters() if parameter.grad is not None)]
    return [value.detach().double() for value in (*found, *network.buffers())]


@pytest.mark.parametrize("name", USERS)
def test_results_and_names_stay(name: str) -> None:
    """`accelerate` keeps a network's results, and the names and values of its parameters."""
    make, num_ours = USERS[name]
    torch.manual_seed(0)
    before = make()
    network = deepcopy(before)
    accelerate(network)
    assert sum(isinstance(module, Conv2d | Linear) for module in network.modules()) == num_ours
    assert [*network.state_dict()] == [*before.state_dict()]
    assert all(map(torch.equal, network.state_dict().values(), before.state_dict().values()))
    exact = deepcopy(before).double()
    for num_samples in (1, 5):
        image = torch.randn(num_samples, 3, 12, 10)
        expected = results(exact, image, bf16=False)
        for ours, other in zip(results(network, image, bf16=False), expected, strict=True):
            assert (ours - other).norm() <= 1e-4 * other.norm() + 1e-4
        if num_samples == 1:
            continue
        plain = results(before, image, bf16=True)
        for ours, theirs, other in zip(results(network, image, bf16=True), plain, expected, strict=True):
            assert (ours - other).norm() <= 2 * (theirs - other).norm() + 0.01 * other.norm() + 1e-4


def test_accelerating_twice_changes_nothing() -> None:
    """Accelerating a network and a part of it again changes nothing."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ReLU(), nn.Flatten(), nn.Linear(640, 40), nn.ReLU())
    before, image = deepcopy(network), torch.randn(2, 3, 12, 10)
    for _ in range(2):
        accelerate(network)
        accelerate(network[4:])
        torch.testing.assert_close(network(image), before(image), rtol=1e-4, atol=1e-5)


def test_hooks_of_the_backward_pass_are_kept() -> None:
    for register in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        torch.manual_seed(0)
        network, found = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()), []
        hook = (lambda *a: (a[-1][0] * 3,)) if "pre" in register else (lambda module, inputs, _: (inputs[0] * 3,))
        getattr(network[2], register)(hook)
        for _ in range(2):
            network.zero_grad()
            network(torch.ones(1, 3, 8, 8)).sum().backward()
            found.append(network[0].weight.grad.clone())
            accelerate(network)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        assert isinstance(network[0], Conv2d) and type(network[2]) is nn.Conv2d


def test_hooks_that_come_later() -> None:
    """Forward hooks added later get the layer's output and the ReLU's."""
    torch.manual_seed(0)
    network, seen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), list[Tensor]()
    image = torch.randn(2, 3, 8, 8)
    accelerate(network)
    expected = network(image)
    for module in network:
        module.register_forward_hook(lambda module, inputs, y: seen.append(y))
    torch.testing.assert_close(network(image), expected)
    assert len(seen) == 2 and (seen[0] < 0).any() and torch.equal(seen[0].relu(), seen[1])


def test_what_stays_is_named() -> None:
    """`unaccelerated` names the large layers that stay slow, and no others."""
    network = nn.ModuleDict(
        {
            "fast": nn.Conv2d(3, 64, 16),
            "grouped": nn.Conv2d(64, 64, 24, groups=2),
            "core": nn.LSTM(100, 100),
            "block": nn.Sequential(nn.Linear(200, 100), nn.LayerNorm(100), nn.Linear(9, 9)),
            "own": MyConv(3, 64, 16),
            "small": nn.Conv1d(3, 4, 3),  # few weights, but perhaps many positions
        }
    )
    accelerate(network)
    assert unaccelerated(network) == {"grouped": "Conv2d", "core": "LSTM", "own": "MyConv", "small": "Conv1d"}
    for name in NETWORKS.keys() - {"a3c_mlp", *(f"ga3c_large_{number}" for number in range(1, 4))}:
        assert not unaccelerated(ActorCritic(FRAMES, NETWORKS[name]))
    assert not unaccelerated(QNetwork(FRAMES, NETWORKS["nature"], dueling=True))


# ---- names ----

BOTH = ("weight", "bias")
CONVS = ["convolutions.0", "convolutions.2"]
A3C = [f"encoder.trunk.{layer}" for layer in (*CONVS, "hidden")]
MLP = ["mlp.layers.0", "mlp.layers.2"]
DUELING = ["encoder.trunk.0", "encoder.trunk.2"]
DUELING += ["head.value.0", "head.value.2", "head.advantage.0", "head.advantage.2"]
ROOM = Dict({"front": Box(0, 255, (24, 24, 3), np.uint8), "speed": Box(-1, 1, (2,))})
NESTED = EnvSpec(row_space(ROOM), Discrete(2), nested_space=ROOM)
STATES: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "nature": (lambda: NETWORKS["nature"](FRAMES), [*CONVS, "convolutions.4", "hidden"]),
    "a3c_mlp": (lambda: NETWORKS["a3c_mlp"](EnvSpec(Box(-1, 1, (5,)), Discrete(2))), ["layers.0"]),
    "actor-critic": (lambda: ActorCritic(FRAMES), [*A3C, "policy_head", "value_head"]),
    "q": (lambda: QNetwork(FRAMES), [*A3C, "head.output"]),
    "dueling": (lambda: QNetwork(FRAMES, dueling=True), DUELING),
    "nested": (lambda: make_trunk(NESTED), [*(f"nets.0.{layer}" for layer in (*CONVS, "hidden")), *MLP]),
}


@pytest.mark.parametrize("name", STATES)
def test_checkpoints_of_earlier_versions_can_be_read(name: str) -> None:
    """The names and order of a network's parameters are those of earlier checkpoints."""
    make, layers = STATES[name]
    state = make().state_dict()
    assert [*state] == [f"{layer}.{kind}" for layer in layers for kind in BOTH]
    assert all(value.dtype == torch.float32 for value in state.values())
    make().load_state_dict(state)
