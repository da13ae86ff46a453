"""Tests of the fast layers' gradients against float64, and of the other operations of an update."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from accel_rl.envs.spec import EnvSpec
from accel_rl.models import onednn
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.layers import ByteConv, Conv2d, Linear, Sequential
from accel_rl.models.trunks import NETWORKS
from accel_rl.updates import Update
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import SGD
from tests.helpers.plain import disturbed, gradients, images, plain

pytestmark = pytest.mark.usefixtures("small_products")

FRAMES = EnvSpec(Box(0, 255, (36, 36), np.uint8), Discrete(6), frame_stack=4)
SHAPE = (4, 36, 36)


def make_nature() -> ActorCritic:
    return ActorCritic(FRAMES, NETWORKS["nature"])


LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: Linear(160, 110), (96, 160)),
    "convolution": (lambda: Conv2d(8, 12, 4, 2, 1), (16, 8, 15, 14)),
    "bytes": (lambda: ByteConv(3, 12, 8, 4), (16, 3, 28, 32)),
    "bytes of odd width": (lambda: ByteConv(3, 12, 8, 4), (16, 3, 28, 33)),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_one_layer(name: str, relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's gradients equal those in float64, and in bfloat16 they are as exact as autocast's."""
    monkeypatch.setattr(onednn, "prefers_products", lambda: onednn.multiplies(torch.float32))
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = Sequential(make(), *([nn.ReLU()] if relu else []))
    takes_bytes = isinstance(layer[0], ByteConv)
    x = torch.randint(0, 256, shape, dtype=torch.uint8) if takes_bytes else torch.randn(shape)
    slope, found = torch.randn(layer(x).shape), list[list[Tensor]]()
    same = plain(layer)
    for module, dtype in (
        (deepcopy(same).double(), torch.float64),
        (layer, torch.float32),
        (layer, torch.bfloat16),
        (same, torch.bfloat16),
    ):
        module.zero_grad()
        inputs = x.double() if dtype == torch.float64 else x
        inputs = inputs if takes_bytes else inputs.detach().requires_grad_()
        with torch.autocast("cpu", enabled=dtype == torch.bfloat16):
            y = module(inputs)
        (y * slope).sum().backward()
        found.append(gradients(module) + ([] if takes_bytes else [inputs.grad.double()]))
    expected, *rest = found
    in_float32, ours, autocast = (
        [float((a - b).norm() / b.norm()) for a, b in zip(each, expected, strict=True)] for each in rest
    )
    assert max(in_float32) < 1e-5
    assert all(mine <= 1.2 * allowed for mine, allowed in zip(ours, autocast, strict=True))


def test_gradients_add_up() -> None:
    network = make_nature()
    parameters, image = FlatParameters(disturbed(network)), images(SHAPE, 6)

    def total(part: Tensor) -> Tensor:
        parameters, value = network(part)
        return parameters.sum() + value.sum()

    for bf16 in (False, True):
        network.bf16, parts = bf16, []
        for rows in (slice(0, 4), slice(4, 6)):
            parameters.zero_gradient()
            total(image[rows]).backward()
            parts.append(parameters.gradient.clone())
        parameters.zero_gradient()
        for rows in (slice(0, 4), slice(4, 6)):
            total(image[rows]).backward()
        torch.testing.assert_close(parameters.gradient, parts[0] + parts[1], rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients_are_refused() -> None:
    """Second derivatives through a fast layer are refused."""
    for layer, shape in ((Conv2d(2, 3, 3), (1, 2, 5, 5)), (Linear(8, 4), (2, 8))):
        x = torch.randn(shape, requires_grad=True)
        with torch.autocast("cpu"):  # makes both layers fast ones
            y = layer(x)
        is_ours = onednn.convolves if isinstance(layer, Conv2d) else onednn.multiplies
        if is_ours(torch.bfloat16):
            (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            with pytest.raises(RuntimeError, match="once_differentiable"):
                gradient.sum().backward()


# ---- what an update computes ----


class Calls(TorchDispatchMode):
    """Counts operations; records the sizes of casts to bfloat16 and which gradients convolutions compute."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its tracer

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.casts: list[int] = []
        self.masks: list[list[bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.partition(".")[0]
        self.names[name] += 1
        if name == "_to_copy" and kwargs.get("dtype") == torch.bfloat16 and args[0].dtype == torch.float32:
            self.casts.append(args[0].numel())
        if name == "convolution_backward":
            self.masks.append(list(args[-1]))
        return func(*args, **kwargs)

    @property
    def packed(self) -> int:
        return self.names["_reorder_convolution_weight"] + self.names["_reorder_linear_weight"]


def make(bf16: bool) -> tuple[Any, Update, Callable[[], Any]]:
    """Returns a policy, its update, and a function that makes one update of 12 samples in 3 slices."""
    torch.manual_seed(0)
    policy = make_nature()
    policy.bf16 = bf16
    image = images(SHAPE, 12)
    update = Update(policy, SGD(), slice_elements=4 * image[0].numel())

    def loss(part: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        parameters, value = policy(part)
        return parameters.square().sum() + value.sum(), {}

    return policy, update, lambda: update.minimize(loss, (image,), torch.tensor(12), 1e-3)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_first_layer_computes_no_gradient_of_its_input(bf16: bool) -> None:
    _, _, minimize = make(bf16)
    with Calls() as calls:
        minimize()
    assert [mask[0] for mask in calls.masks] == [True, True, False] * 3  # three slices, backwards
    assert all(mask[1] and mask[2] for mask in calls.masks)


needs_bf16 = pytest.mark.skipif(
    not (onednn.convolves(torch.bfloat16) and onednn.multiplies(torch.bfloat16)),
    reason="without oneDNN's bfloat16, PyTorch casts in each call",
)


@needs_bf16
def test_weights_are_cast_once_for_each_update() -> None:
    """Weights are cast to bfloat16 once per update, however many slices and acts use them."""
    policy, _, minimize = make(bf16=True)
    weights = {p.numel() for name, p in policy.encoder.named_parameters() if name.endswith("weight")}
    for _ in range(2):  # updates
        with Calls() as calls:
            minimize()
            for index in range(6):
                policy.act(images(SHAPE, 3 + index % 2), None)
        # The update changes the weights last, so it casts the old ones, unless they have been cast already.
        counts = Counter(each for each in calls.casts if each in weights)
        assert counts.keys() == weights and sum(counts.values()) <= 2 * 4
        with Calls() as calls:
            for index in range(6):
                policy.act(images(SHAPE, 3 + index % 2), None)
                with torch.no_grad():
                    policy(images(SHAPE, 5))
        assert not set(calls.casts) & weights and not calls.packed
    with Calls() as calls:
        minimize()  # the acts have cast the weights already
    assert not set(calls.casts) & weights


@pytest.mark.skipif(
    not (onednn.convolves(torch.float32) and onednn.multiplies(torch.float32)), reason="needs oneDNN's operations"
)
@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=needs_bf16)])
def test_weights_are_packed_once_for_each_update_and_batch_size(bf16: bool) -> None:
    """Weights are packed once per update and acting batch size, and never for learning."""
    policy, _, minimize = make(bf16)
    policy.act(images(SHAPE, 2), None)  # a process's first act also tries the CPU's operations
    for _ in range(2):
        minimize()
        for num_samples in (3, 4):
            for expected in (4, 0, 0):
                with Calls() as calls:
                    policy.act(images(SHAPE, num_samples), None)
                assert calls.packed == expected
    with Calls() as calls:
        minimize()
    assert not calls.packed
