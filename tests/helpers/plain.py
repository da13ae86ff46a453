"""The networks that PyTorch's own layers make of ours, and images in every layout that a network is given."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from accel_rl.models.layers import ByteConv, Conv2d, Linear


class DividedBy255(nn.Module):
    """Turns bytes into numbers from 0 to 1."""

    def forward(self, image: Tensor) -> Tensor:
        return image / 255


class Plain(nn.Module):
    """Calls PyTorch's layer as ours are called; of_bytes: on images that are divided by 255."""

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
    """Returns the same layer as PyTorch's."""
    same: nn.Module
    if isinstance(layer, Linear):
        same = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    else:
        geometry: Any = (layer.kernel_size, layer.stride, layer.padding)
        same = nn.Conv2d(layer.in_channels, layer.out_channels, *geometry, bias=layer.bias is not None)
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
