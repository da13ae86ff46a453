"""Trunks: observation [N, ...] -> features [N, F]. Initialised as in the code of Stooke & Abbeel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.envs.spaces import Part, is_channels_last, is_picture, parts_of
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.linear import WideLinear

A3C_LAYERS = [(16, 8, 4, 0), (32, 4, 2, 0)]  # filters, kernel, stride, padding; pictures of 20 x 20 or more


def make_trunk(spec: EnvSpec) -> nn.Module:
    """The default network for these observations: A3C-Net for pictures, a small MLP for everything else, and both for
    a Dict or Tuple that has pictures in it."""
    if spec.is_pixels:
        return a3c_net(spec)
    return NestedNet(spec) if any(is_picture(part.space) for part in _parts(spec)) else MLP(spec)


def linear(num_inputs: int, num_outputs: int, norm: float = 1.0, layer_class: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """A linear layer whose units' weight vectors have the given norm, in random directions, and zero biases."""
    layer = layer_class(num_inputs, num_outputs)
    with torch.no_grad():
        layer.weight.normal_()
        layer.weight.mul_(norm / layer.weight.norm(dim=1, keepdim=True))
        layer.bias.zero_()
    return layer


def conv(
    num_inputs: int, num_outputs: int, kernel: int, stride: int, padding: int = 0, of_picture: bool = False
) -> nn.Conv2d:
    """A convolution with Glorot-uniform weights and zero biases."""
    layer = (PictureConv if of_picture else nn.Conv2d)(num_inputs, num_outputs, kernel, stride, padding)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class PictureConv(nn.Conv2d):
    """A convolution of pixels / 255, given as they are: uint8 [N, C, H, W]; not differentiated by them.

    The division is done on the weights, which are fewer. Bytes are exact in bfloat16, their 255ths are not.
    """

    def forward(self, picture: Tensor) -> Tensor:
        x = interleaved(picture).to(torch.float32, memory_format=torch.channels_last)
        return self._conv_forward(x, self.weight * (1 / 255), self.bias)  # type: ignore[no-any-return]


def interleaved(picture: Tensor) -> Tensor:
    """The same picture, uint8 [N, C, H, W], channels-last in memory if it is a stack of 4 on a CPU.

    Four bytes of one pixel are one integer, little-endian: a few additions over whole planes, several times as fast as
    moving each byte."""
    if picture.dtype != torch.uint8 or picture.shape[1] != 4 or picture.device.type != "cpu":
        return picture
    pixels = picture[:, 0].to(torch.int32, memory_format=torch.contiguous_format)  # [N, H, W]
    for channel in range(1, 4):
        pixels.add_(picture[:, channel], alpha=1 << 8 * channel)
    return pixels.view(torch.uint8).view(*pixels.shape, 4).permute(0, 3, 1, 2)


class _Flatten(nn.Module):
    """[N, C, H, W] -> [N, H x W x C]: of a tensor that is channels-last in memory, nothing moves."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class ConvNet(nn.Module):
    """Convolutions and one hidden layer, ReLU after each; pictures [N, C, H, W] uint8 -> [N, num_features].

    layers: (filters, kernel, stride, padding) of each convolution.
    """

    def __init__(self, shape: tuple[int, ...], layers: Sequence[tuple[int, int, int, int]], num_features: int):
        super().__init__()
        num_inputs, modules = shape[0], list[nn.Module]()
        for num_filters, kernel, stride, padding in layers:
            layer = conv(num_inputs, num_filters, kernel, stride, padding, of_picture=not modules)
            modules += [layer, nn.ReLU()]
            num_inputs = num_filters
        self.convolutions = nn.Sequential(*modules, _Flatten())
        with torch.no_grad():
            num_outputs = self.convolutions(torch.zeros(1, *shape)).shape[1]
        self.hidden = linear(num_outputs, num_features, layer_class=WideLinear)
        self.num_features = num_features

    def forward(self, picture: Tensor) -> Tensor:
        return torch.relu(self.hidden(self.convolutions(picture)))


def _half_size(spec: EnvSpec) -> bool:
    """Frames of 104x80, with which Stooke & Abbeel (5.1) pad every convolution but the first by 1."""
    return spec.observation_shape[1:] == (104, 80)


def a3c_net(spec: EnvSpec) -> ConvNet:
    """Two convolutions and 256 hidden units (Mnih et al. 2016).

    4x104x80 -> 16x25x19 -> 32x12x9 -> 256;  4x84x84 -> 16x20x20 -> 32x9x9 -> 256.
    """
    first, second = A3C_LAYERS
    layers = [first, (*second[:3], 1)] if _half_size(spec) else A3C_LAYERS
    return ConvNet(spec.observation_shape, layers, num_features=256)


def nature_cnn(spec: EnvSpec) -> ConvNet:
    """Three convolutions and 512 hidden units (Mnih et al. 2015); Stooke & Abbeel's DQN-Net on their frames.

    4x104x80 -> 32x25x19 -> 64x12x9 -> 64x12x9 -> 512;  4x84x84 -> 32x20x20 -> 64x9x9 -> 64x7x7 -> 512.
    """
    padding = int(_half_size(spec))
    return ConvNet(spec.observation_shape, [(32, 8, 4, 0), (64, 4, 2, padding), (64, 3, 1, padding)], num_features=512)


def cule_net(spec: EnvSpec) -> ConvNet:
    """The network of CuLE's A2C, PPO and V-trace examples: 4x84x84 -> 32x20x20 -> 64x9x9 -> 32x7x7 -> 512."""
    return ConvNet(spec.observation_shape, [(32, 8, 4, 0), (64, 4, 2, 0), (32, 3, 1, 0)], num_features=512)


class MLP(nn.Module):
    """Hidden layers for observations without spatial structure; Discrete ones become one-hot."""

    def __init__(self, spec: EnvSpec, sizes: Sequence[int] = (64, 64), activation: Callable[[], nn.Module] = nn.Tanh):
        super().__init__()
        space = spec.observation_space
        self.num_classes = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self.first_class = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        widths = [self.num_classes or math.prod(spec.observation_shape), *sizes]
        self.layers = nn.Sequential()
        for num_inputs, num_outputs in pairwise(widths):
            self.layers.extend([linear(num_inputs, num_outputs), activation()])
        self.num_features = widths[-1]

    def forward(self, observation: Tensor) -> Tensor:
        if self.num_classes:
            x = nn.functional.one_hot(observation - self.first_class, self.num_classes).float()
        else:
            x = observation.flatten(1).float()
        return self.layers(x)  # type: ignore[no-any-return]


class NestedNet(nn.Module):
    """For a Dict or Tuple with pictures: an A3C-Net for each, an MLP for all other parts; their features side by side.

    observation: flat rows [N, F] of spec.nested_space. Pictures that are too small for the convolutions go into the
    MLP, scaled to 1 like the others.
    """

    def __init__(self, spec: EnvSpec):
        super().__init__()
        parts = _parts(spec)
        self.pictures = [part for part in parts if _is_large_picture(part.space)]
        self.nets = nn.ModuleList(ConvNet(_channels_first(part.space), A3C_LAYERS, 256) for part in self.pictures)
        others = [part for part in parts if not _is_large_picture(part.space)]
        columns = [torch.arange(part.columns.start, part.columns.stop) for part in others]
        scales = [
            torch.full((len(column),), 1 / 255 if is_picture(part.space) else 1.0)
            for part, column in zip(others, columns, strict=True)
        ]
        self._columns: Tensor
        self._scale: Tensor
        self.register_buffer("_columns", torch.cat([torch.arange(0), *columns]), persistent=False)
        self.register_buffer("_scale", torch.cat([torch.ones(0), *scales]), persistent=False)
        rest = gymnasium.spaces.Box(-math.inf, math.inf, self._columns.shape, np.float32)
        self.mlp = MLP(replace(spec, observation_space=rest)) if len(self._columns) else None
        self.num_features = sum(net.num_features for net in [*self.nets, self.mlp] if net)

    def forward(self, observation: Tensor) -> Tensor:
        features = [
            net(_as_picture(observation[:, part.columns], part.space))
            for part, net in zip(self.pictures, self.nets, strict=True)
        ]
        if self.mlp:
            features.append(self.mlp(observation[:, self._columns] * self._scale))
        return torch.cat(features, -1)


def _parts(spec: EnvSpec) -> list[Part]:
    return [] if spec.nested_space is None else parts_of(spec.nested_space)


def _is_large_picture(space: gymnasium.Space[Any]) -> bool:
    """Large enough for A3C-Net's convolutions."""
    return is_picture(space) and min(_channels_first(space)[1:]) >= 20


def _channels_first(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    shape = tuple(space.shape or ())
    return (shape[2], *shape[:2]) if is_channels_last(space) else shape


def _as_picture(rows: Tensor, space: gymnasium.Space[Any]) -> Tensor:
    """A picture's numbers in flat rows [N, F] as [N, C, H, W]."""
    picture = rows.reshape(len(rows), *(space.shape or ()))
    return picture.permute(0, 3, 1, 2) if is_channels_last(space) else picture


def a3c_mlp(spec: EnvSpec) -> MLP:
    """One layer of 200 ReLU units, for continuous control from states (Mnih et al. 2016, supplement, section 3)."""
    return MLP(spec, (200,), nn.ReLU)


NETWORKS: dict[str, Callable[[EnvSpec], nn.Module]] = {
    "a3c": a3c_net,
    "nature": nature_cnn,
    "cule": cule_net,
    "a3c_mlp": a3c_mlp,
}
"""The trunks that `--network` knows by name."""
