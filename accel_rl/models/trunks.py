"""Trunks: observation [N, ...] -> features [N, F]. Initialized as in the code of Stooke & Abbeel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.envs.spaces import Part, is_channels_last, is_picture, parts_of
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.layers import ByteConv, Conv2d, Linear

ConvLayer = tuple[int, int, int, int | str]
"""Filters, kernel, stride, padding of a convolution; "same": as TensorFlow pads, see `same_padding`."""

A3C_LAYERS = [(16, 8, 4, 0), (32, 4, 2, 0)]  # for images of at least 20 x 20


def make_trunk(spec: EnvSpec) -> nn.Module:
    """Returns the default trunk for an observation space.

    This is A3C-Net for images, both A3C-Net and a small MLP for a Dict or Tuple that contains images, and a small MLP
    for everything else."""
    if spec.is_pixels:
        return a3c_net(spec)
    return NestedNet(spec) if any(is_picture(part.space) for part in _parts(spec)) else MLP(spec)


def linear(num_inputs: int, num_outputs: int, norm: float = 1.0) -> nn.Linear:
    """Returns a linear layer whose weight vectors have random directions and the given norm; biases are zero."""
    layer = nn.Linear(num_inputs, num_outputs)
    initialize(layer, norm)
    return layer


@torch.no_grad()
def initialize(layer: nn.Linear, norm: float = 1.0) -> None:
    """Gives weight vectors random directions and the given norm, and makes biases zero."""
    layer.weight.normal_()
    layer.weight.mul_(norm / layer.weight.norm(dim=1, keepdim=True))
    layer.bias.zero_()


@torch.no_grad()
def initialize_by_fan_in(network: nn.Module) -> None:
    """Draws all weights and biases of a network's convolutions and linear layers uniformly from +-1/sqrt(fan-in).

    The fan-in is the number of inputs of a unit: channels times kernel for a convolution, and for a deconvolution, too.
    Source: the public code of GA3C and UNREAL."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            fan_in = layer.in_features
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            fan_in = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        else:
            continue
        for parameter in layer.parameters(recurse=False):
            parameter.uniform_(-(fan_in**-0.5), fan_in**-0.5)


def conv(
    num_inputs: int,
    num_outputs: int,
    kernel: int,
    stride: int,
    padding: int | tuple[int, int] = 0,
    takes_bytes: bool = False,
) -> nn.Conv2d:
    """Returns a convolution with Glorot-uniform weights and zero biases; takes_bytes: a `ByteConv`."""
    layer = (ByteConv if takes_bytes else Conv2d)(num_inputs, num_outputs, kernel, stride, padding)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class _Flatten(nn.Module):
    """Flattens [N, C, H, W] to [N, H x W x C], a view where memory is channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Returns how many zeros TensorFlow's padding "SAME" adds before and behind rows or columns of this size, so that
    ceil(size / stride) remain; of an odd number, the larger half is behind."""
    missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return missing // 2, missing - missing // 2


class ConvNet(nn.Module):
    """Applies convolutions and a hidden layer, with ReLU after each: images uint8 [N, C, H, W] -> [N, num_features]."""

    def __init__(self, shape: tuple[int, ...], layers: Sequence[ConvLayer], num_features: int):
        super().__init__()
        (num_inputs, *size), modules = shape, list[nn.Module]()
        for index, (num_filters, kernel, stride, padding) in enumerate(layers):
            sides = [same_padding(n, kernel, stride) if padding == "same" else (int(padding),) * 2 for n in size]
            (top, bottom), (left, right) = sides
            is_symmetric = top == bottom and left == right
            if not is_symmetric:
                modules.append(nn.ZeroPad2d((left, right, top, bottom)))
            own_padding = (top, left) if is_symmetric else 0
            layer = conv(num_inputs, num_filters, kernel, stride, own_padding, takes_bytes=index == 0)
            modules += [layer, nn.ReLU()]
            num_inputs = num_filters
            size = [(n + sum(pads) - kernel) // stride + 1 for n, pads in zip(size, sides, strict=True)]
        self.convolutions = nn.Sequential(*modules, _Flatten())
        with torch.no_grad():
            num_outputs = self.convolutions(torch.zeros(1, *shape)).shape[1]
        self.hidden = Linear(num_outputs, num_features)
        initialize(self.hidden)
        self.num_features = num_features

    def forward(self, image: Tensor) -> Tensor:
        return self.hidden(self.convolutions(image), relu=True)  # type: ignore[no-any-return]


def _half_size(spec: EnvSpec) -> bool:
    """Returns whether frames are 104x80; for these, Stooke & Abbeel (5.1) pad every convolution but the first by 1."""
    return spec.observation_shape[1:] == (104, 80)


def a3c_net(spec: EnvSpec) -> ConvNet:
    """Returns a trunk of two convolutions and 256 hidden units (Mnih et al. 2016).

    4x104x80 -> 16x25x19 -> 32x12x9 -> 256;  4x84x84 -> 16x20x20 -> 32x9x9 -> 256.
    """
    first, second = A3C_LAYERS
    layers = [first, (*second[:3], 1)] if _half_size(spec) else A3C_LAYERS
    return ConvNet(spec.observation_shape, layers, num_features=256)


def nature_cnn(spec: EnvSpec) -> ConvNet:
    """Returns a trunk of three convolutions and 512 hidden units (Mnih et al. 2015).

    On frames of 104x80 it is Stooke & Abbeel's DQN-Net.

    4x104x80 -> 32x25x19 -> 64x12x9 -> 64x12x9 -> 512;  4x84x84 -> 32x20x20 -> 64x9x9 -> 64x7x7 -> 512.
    """
    padding = int(_half_size(spec))
    return ConvNet(spec.observation_shape, [(32, 8, 4, 0), (64, 4, 2, padding), (64, 3, 1, padding)], num_features=512)


def cule_net(spec: EnvSpec) -> ConvNet:
    """Returns the trunk of CuLE's A2C, PPO and V-trace examples: 4x84x84 -> 32x20x20 -> 64x9x9 -> 32x7x7 -> 512."""
    return ConvNet(spec.observation_shape, [(32, 8, 4, 0), (64, 4, 2, 0), (32, 3, 1, 0)], num_features=512)


def ga3c_net(spec: EnvSpec) -> ConvNet:
    """Returns A3C-Net with padded convolutions, as in the code of GA3C: 4x84x84 -> 16x21x21 -> 32x11x11 -> 256."""
    return ConvNet(spec.observation_shape, [(16, 8, 4, "same"), (32, 4, 2, "same")], num_features=256)


def ga3c_large_net(spec: EnvSpec, stride: int) -> ConvNet:
    """Returns GA3C's larger network, whose first convolution has this stride (Babaeizadeh et al. 2017, footnote 2).

    4x84x84 -> 32x21x21 -> 32x11x11 -> 64x6x6 -> 256 with stride 4, 32x84x84 -> 32x42x42 -> 64x21x21 with stride 1."""
    layers = [(32, 8, stride, "same"), (32, 4, 2, "same"), (64, 4, 2, "same")]
    return ConvNet(spec.observation_shape, layers, num_features=256)


class MLP(nn.Module):
    """Applies hidden layers to observations without spatial structure; Discrete ones become one-hot."""

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
    """Applies an A3C-Net to each image of a Dict or Tuple, an MLP to all other entries, and concatenates the features.

    Observations are flat rows [N, F] of spec.nested_space. Images too small for the convolutions go into the MLP, also
    divided by 255.
    """

    def __init__(self, spec: EnvSpec):
        super().__init__()
        parts = _parts(spec)
        self.images = [part for part in parts if _is_large_image(part.space)]
        self.nets = nn.ModuleList(ConvNet(_channels_first(part.space), A3C_LAYERS, 256) for part in self.images)
        flat_parts = [part for part in parts if not _is_large_image(part.space)]
        columns = [torch.arange(part.columns.start, part.columns.stop) for part in flat_parts]
        scales = [
            torch.full((len(column),), 1 / 255 if is_picture(part.space) else 1.0)
            for part, column in zip(flat_parts, columns, strict=True)
        ]
        self._columns: Tensor
        self._scale: Tensor
        self.register_buffer("_columns", torch.cat([torch.arange(0), *columns]), persistent=False)
        self.register_buffer("_scale", torch.cat([torch.ones(0), *scales]), persistent=False)
        flat_space = gymnasium.spaces.Box(-math.inf, math.inf, self._columns.shape, np.float32)
        self.mlp = MLP(replace(spec, observation_space=flat_space)) if len(self._columns) else None
        self.num_features = sum(net.num_features for net in [*self.nets, self.mlp] if net)

    def forward(self, observation: Tensor) -> Tensor:
        features = [
            net(_to_image(observation[:, part.columns], part.space))
            for part, net in zip(self.images, self.nets, strict=True)
        ]
        if self.mlp:
            features.append(self.mlp(observation[:, self._columns] * self._scale))
        return torch.cat(features, -1)


def _parts(spec: EnvSpec) -> list[Part]:
    return [] if spec.nested_space is None else parts_of(spec.nested_space)


def _is_large_image(space: gymnasium.Space[Any]) -> bool:
    """Returns whether this is an image large enough for A3C-Net's convolutions."""
    return is_picture(space) and min(_channels_first(space)[1:]) >= 20


def _channels_first(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    shape = tuple(space.shape or ())
    return (shape[2], *shape[:2]) if is_channels_last(space) else shape


def _to_image(rows: Tensor, space: gymnasium.Space[Any]) -> Tensor:
    """Returns the images [N, C, H, W] that flat rows [N, F] hold."""
    image = rows.reshape(-1, *(space.shape or ()))
    return image.permute(0, 3, 1, 2) if is_channels_last(space) else image


def a3c_mlp(spec: EnvSpec) -> MLP:
    """Returns one layer of 200 ReLU units, for control from state vectors (Mnih et al. 2016, supplement, section 3)."""
    return MLP(spec, (200,), nn.ReLU)


NETWORKS: dict[str, Callable[[EnvSpec], nn.Module]] = {
    "a3c": a3c_net,
    "nature": nature_cnn,
    "cule": cule_net,
    "a3c_mlp": a3c_mlp,
    "ga3c": ga3c_net,
    **{f"ga3c_large_{stride}": partial(ga3c_large_net, stride=stride) for stride in (4, 3, 2, 1)},
}
"""The trunks that `--network` knows by name."""
