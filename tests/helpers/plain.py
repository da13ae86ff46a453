"""Our networks rebuilt from PyTorch's own layers, the outputs of both, and images in all layouts."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.layers import ByteConv, Conv2d, Linear
from accel_rl.models.q_network import QNetwork


class Plain(nn.Module):
    """A layer of PyTorch's that is called like ours; of_bytes: with images divided by 255."""

    def __init__(self, layer: nn.Module, of_bytes: bool):
        super().__init__()
        self.layer, self.of_bytes = layer, of_bytes

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        y: Tensor = self.layer(x / 255 if self.of_bytes else x)
        return torch.relu(y) if relu else y


def plain(network: Any) -> Any:
    """Returns a copy that has nn.Conv2d, nn.Linear and nn.ReLU instead of our layers; images are divided by 255."""
    copy = deepcopy(network)
    for parent in list(copy.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, Conv2d | Linear):
                setattr(parent, name, plain_layer(layer))
    return copy


def plain_layer(layer: Conv2d | Linear) -> nn.Module:
    """Returns PyTorch's version of the layer."""
    same: nn.Module
    if isinstance(layer, Linear):
        same = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    else:
        geometry: Any = {"kernel_size": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
        same = nn.Conv2d(layer.in_channels, layer.out_channels, **geometry, bias=layer.bias is not None)
    same.load_state_dict(layer.state_dict())
    for parameter, ours in zip(same.parameters(), layer.parameters(), strict=True):
        parameter.requires_grad_(ours.requires_grad)
    return Plain(same, isinstance(layer, ByteConv))


def gradients(network: nn.Module) -> list[Tensor]:
    """Returns copies of all parameters' gradients, in float64; `plain` networks have them in the same order."""
    return [parameter.grad.double().clone() for parameter in network.parameters() if parameter.grad is not None]


def images(shape: tuple[int, int, int], num_samples: int, seed: int = 0) -> Tensor:
    """Returns random images uint8 [N, C, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_samples, *shape), dtype=torch.uint8, generator=generator)


def layouts(image: Tensor) -> dict[str, Tensor]:
    """Returns the same images uint8 [N, C, H, W] in other memory layouts: those of samplers, rollouts and replays."""
    N, C, H, W = image.shape
    time_major = image.transpose(0, 1).contiguous()  # [C, N, H, W]: a sampler's rows of frames
    of_more = torch.zeros(C, 2 * N + 1, H, W, dtype=torch.uint8)
    of_more[:, N : 2 * N] = time_major
    wider = torch.zeros(N, C, H, 2 * W, dtype=torch.uint8)
    wider[..., ::2] = image
    return {
        "contiguous": image.contiguous(),
        "channels-last": image.contiguous(memory_format=torch.channels_last),
        "stacks of a group": of_more[:, N : 2 * N].transpose(0, 1),
        "every other column": wider[..., ::2],
    }


def pixels(*shape: int, action: Any = None, frame_stack: int = 0) -> EnvSpec:
    return EnvSpec(Box(0, 255, shape, np.uint8), action or Discrete(6), frame_stack)


def disturbed(network: Any, seed: int = 0) -> Any:
    """Adds noise to all parameters, so that biases are not zero and heads are not small."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 * parameter.std() if parameter.dim() > 1 else 0.3))
    return network


def error(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, relative to the largest number expected."""
    assert found.shape == expected.shape and found.dtype == torch.float32
    assert found.isfinite().all()
    return float((found - expected).abs().max() / expected.abs().max())


def outputs(policy: Any, *arguments: Any) -> list[Tensor]:
    """Returns everything that an acting policy computes before it chooses."""
    with torch.inference_mode():
        if isinstance(policy, QNetwork):
            return [policy(arguments[0])]
        return [value for value in policy.step(*arguments) if value is not None]


def assert_acts_as_plain(policy: Any, *arguments: Any) -> None:
    """Asserts that float32 equals plain PyTorch's up to rounding, and that bfloat16 has about PyTorch's error.

    Errors of a few outputs vary by chance; tests/models/test_gradients.py compares those of many numbers."""
    reference = plain(policy)
    policy.bf16 = reference.bf16 = False
    expected = outputs(reference, *arguments)
    assert all(value.std() > 0 for value in expected if value.numel() > 1)
    for found, value in zip(outputs(policy, *arguments), expected, strict=True):
        assert error(found, value) < 1e-4
    policy.bf16 = reference.bf16 = True
    rounded = outputs(reference, *arguments)
    for found, other, value in zip(outputs(policy, *arguments), rounded, expected, strict=True):
        assert error(found, value) <= 2 * error(other, value) + 4 * torch.finfo(torch.bfloat16).eps
    policy.bf16 = False
