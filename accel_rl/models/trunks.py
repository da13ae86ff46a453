"""Defines trunks: observation [N, ...] -> features [N, F]. They are initialized as in the code of Stooke & Abbeel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.envs.spaces.conversion import Part, parts_of, row_space
from accel_rl.envs.spaces.pictures import is_channels_last, is_picture, is_small, value_range
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.direct import Function, direct, in_sequence
from accel_rl.models.layers import ByteConv, Conv2d, Linear

ConvLayer = tuple[int, int, int, int | str]
"""Filters, kernel, stride, padding of a convolution; "same": TensorFlow's padding, see `same_padding`."""

A3C_LAYERS = [(16, 8, 4, 0), (32, 4, 2, 0)]  # for images of at least 20 x 20


def make_trunk(spec: EnvSpec) -> nn.Module:
    """Returns the default trunk for an observation space.

    This is A3C-Net for images and `small_net` for small images; these and a small MLP for a Dict or Tuple that contains
    images; a small MLP for everything else."""
    if spec.is_picture:
        return image_net(spec)
    return NestedNet(spec) if any(is_picture(part.space) for part in _parts(spec)) else MLP(spec)


def linear(num_inputs: int, num_outputs: int, norm: float = 1.0) -> nn.Linear:
    """Returns a linear layer whose weight vectors have random directions and the given norm; biases are zero."""
    layer = nn.Linear(num_inputs, num_outputs)
    initialize(layer, norm)
    return layer


@torch.no_grad()
def initialize(layer: nn.Linear, norm: float = 1.0) -> None:
    """Gives weight vectors random directions and the given norm; sets biases to zero."""
    layer.weight.normal_()
    layer.weight.mul_(norm / layer.weight.norm(dim=1, keepdim=True))
    layer.bias.zero_()


@torch.no_grad()
def initialize_by_fan_in(network: nn.Module) -> None:
    """Draws all weights and biases of a network's convolutions and linear layers uniformly from +-1/sqrt(fan-in).

    The fan-in is the number of inputs of a unit: channels times kernel for convolutions and deconvolutions.
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


@torch.no_grad()
def initialize_orthogonally(network: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Sets all weights of a network's convolutions and linear layers to orthogonal matrices times a gain, one row per
    unit, and their biases to zero. The recurrent weights of a core stay unchanged.

    Source: Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks"."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class _Flatten(nn.Module):
    """A layer that flattens [N, C, H, W] to [N, H x W x C]; a view if memory is channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Returns how many zeros TensorFlow's padding "SAME" adds before and after rows or columns of this size, so that
    ceil(size / stride) remain. The larger half of an odd number comes after."""
    missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return missing // 2, missing - missing // 2


class Scale(nn.Module):
    """A layer that maps images of numbers between low and high to numbers between 0 and 1."""

    def __init__(self, low: float, high: float):
        super().__init__()
        self.low, self.factor = low, 1 / (high - low)

    def forward(self, image: Tensor) -> Tensor:
        return (image.float() - self.low) * self.factor


class LinearAndLog(Scale):
    """A layer that maps images [N, C, H, W] of numbers between low and high to [N, 2 C, H, W]: x between 0 and 1, and
    log2(1 + 255 |x|) / 8, also between 0 and 1, with the sign of x.

    Small images often hold codes of objects, such as 0 ... 10 in a space of 0 ... 255. Their logarithms are far apart.
    """

    def forward(self, image: Tensor) -> Tensor:
        x = super().forward(image)
        return torch.cat([x, x.sign() * torch.log2(1 + 255 * x.abs()) / 8], 1)


class ConvNet(nn.Module):
    """A trunk of convolutions and a hidden layer, with ReLU after each: images [N, C, H, W] -> [N, num_features].

    Numbers between the bounds of spec's images become 0 ... 1; unbounded numbers stay unchanged. any_scale: the network
    also sees the numbers' logarithms, and normalizes the first convolution's output for each image to mean 0, std 1.
    Raises UsageError for observations that are not images, or too small for the kernels."""

    def __init__(self, spec: EnvSpec, layers: Sequence[ConvLayer], num_features: int, any_scale: bool = False):
        super().__init__()
        if not spec.is_picture:
            raise UsageError(
                f"this network takes pictures, but observations are {spec.nested_space or spec.observation_space}; "
                "omit --network to use one that fits"
            )
        shape = spec.observation_shape
        (num_inputs, *size), modules = shape, list[nn.Module]()
        low, high = value_range(spec.observation_space) or (0.0, 1.0)
        takes_bytes = spec.is_pixels and (low, high) == (0, 255) and not any_scale  # the first convolution scales bytes
        if any_scale:
            modules.append(LinearAndLog(low, high))
            num_inputs *= 2
        elif not takes_bytes:
            modules.append(Scale(low, high))
        for index, (num_filters, kernel, stride, padding) in enumerate(layers):
            sides = [
                same_padding(n, kernel, stride) if padding == "same" else (int(padding), int(padding)) for n in size
            ]
            if any(n + sum(pads) < kernel for n, pads in zip(size, sides, strict=True)):
                raise UsageError(
                    f"this network's convolutions are too large for pictures of {shape[1]}x{shape[2]}; omit --network "
                    "to use one that fits"
                )
            (top, bottom), (left, right) = sides
            is_symmetric = top == bottom and left == right
            if not is_symmetric:
                modules.append(nn.ZeroPad2d((left, right, top, bottom)))
            own_padding = (top, left) if is_symmetric else 0
            kind = ByteConv if takes_bytes and index == 0 else Conv2d
            layer = kind(num_inputs, num_filters, kernel, stride, own_padding)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            normalizes = any_scale and index == 0
            modules += [layer, nn.GroupNorm(1, num_filters), nn.ReLU()] if normalizes else [layer, nn.ReLU()]
            num_inputs = num_filters
            size = [(n + sum(pads) - kernel) // stride + 1 for n, pads in zip(size, sides, strict=True)]
            layer.num_products = layer.weight.numel() * math.prod(size)
        self.convolutions = nn.Sequential(*modules, _Flatten())
        self.hidden = Linear(num_inputs * math.prod(size), num_features)
        initialize(self.hidden)
        self.norm: nn.LayerNorm | None = None  # see `add_layer_norms`
        self.num_features = num_features

    def forward(self, image: Tensor) -> Tensor:
        x: Tensor = self.hidden(self.convolutions(image), relu=self.norm is None)
        return x if self.norm is None else torch.relu(self.norm(x))


def _half_size(spec: EnvSpec) -> bool:
    """Returns whether frames are 104x80, where Stooke & Abbeel (5.1) pad every convolution except the first by 1."""
    return spec.observation_shape[1:] == (104, 80)


def a3c_net(spec: EnvSpec) -> ConvNet:
    """Returns a trunk of two convolutions and 256 hidden units (Mnih et al. 2016).

    4x104x80 -> 16x25x19 -> 32x12x9 -> 256;  4x84x84 -> 16x20x20 -> 32x9x9 -> 256.
    """
    first, second = A3C_LAYERS
    layers = [first, (*second[:3], 1)] if _half_size(spec) else A3C_LAYERS
    return ConvNet(spec, layers, num_features=256)


def small_net(spec: EnvSpec) -> ConvNet:
    """Returns a trunk for images of any size, even those too small for A3C-Net: 3x7x7 -> 16x7x7 -> 32x4x4 -> 128.

    If a side is longer than 8, a third convolution follows: 3x16x16 -> 16x16x16 -> 32x8x8 -> 32x4x4 -> 128. The trunk
    learns from codes of objects as well as from colors."""
    layers: list[ConvLayer] = [(16, 3, 1, 1), (32, 3, 2, 1)]
    if max(spec.observation_shape[1:]) > 8:
        layers.append((32, 3, 2, 1))
    return ConvNet(spec, layers, num_features=128, any_scale=True)


def image_net(spec: EnvSpec) -> ConvNet:
    """Returns the default trunk for images."""
    return small_net(spec) if is_small(spec.observation_shape) else a3c_net(spec)


def nature_cnn(spec: EnvSpec, filters: tuple[int, int, int] = (32, 64, 64), num_features: int = 512) -> ConvNet:
    """Returns a trunk of three convolutions and a hidden layer (Mnih et al. 2015).

    On frames of 104x80 it is Stooke & Abbeel's DQN-Net.

    4x104x80 -> 32x25x19 -> 64x12x9 -> 64x12x9 -> 512;  4x84x84 -> 32x20x20 -> 64x9x9 -> 64x7x7 -> 512.
    """
    padding, (first, second, third) = int(_half_size(spec)), filters
    return ConvNet(spec, [(first, 8, 4, 0), (second, 4, 2, padding), (third, 3, 1, padding)], num_features)


class MLP(nn.Module):
    """A trunk of hidden layers for observations without spatial structure; Discrete ones become one-hot."""

    def __init__(self, spec: EnvSpec, sizes: Sequence[int] = (64, 64), activation: Callable[[], nn.Module] = nn.Tanh):
        super().__init__()
        space = spec.observation_space
        self.num_classes = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self.first_class = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self.is_scalar = not spec.observation_shape  # Discrete, or a Box of single numbers
        widths = [self.num_classes or math.prod(spec.observation_shape), *sizes]
        self.layers = nn.Sequential()
        for num_inputs, num_outputs in pairwise(widths):
            self.layers.extend([linear(num_inputs, num_outputs), activation()])
        self.num_features = widths[-1]

    def forward(self, observation: Tensor) -> Tensor:
        if self.num_classes:
            x = nn.functional.one_hot(observation - self.first_class, self.num_classes).float()
        else:
            x = (observation.unsqueeze(-1) if self.is_scalar else observation.flatten(1)).float()
        return self.layers(x)  # type: ignore[no-any-return]

    def direct(self) -> Function | None:
        """Returns a function that computes `forward` of float32 [N, F] (see direct.py); None for large layers."""
        is_large = any(isinstance(layer, Linear) and not layer.is_small for layer in self.layers)
        return None if self.is_scalar or is_large else in_sequence([direct(layer) for layer in self.layers])


class NestedNet(nn.Module):
    """A trunk with `image_net` for each image of a Dict or Tuple and an MLP for all other parts; joins the features.

    Observations are flat rows [N, F] of spec.nested_space.
    """

    def __init__(self, spec: EnvSpec):
        super().__init__()
        parts = _parts(spec)
        self.images = [part for part in parts if is_picture(part.space)]
        self.nets = nn.ModuleList(image_net(EnvSpec(row_space(part.space), spec.action_space)) for part in self.images)
        columns = [torch.arange(p.columns.start, p.columns.stop) for p in parts if not is_picture(p.space)]
        self._columns: Tensor
        self.register_buffer("_columns", torch.cat([torch.arange(0), *columns]), persistent=False)
        flat_space = gymnasium.spaces.Box(-math.inf, math.inf, self._columns.shape, np.float32)
        self.mlp = MLP(replace(spec, observation_space=flat_space)) if len(self._columns) else None
        self.num_features = sum(net.num_features for net in [*self.nets, self.mlp] if net)

    def forward(self, observation: Tensor) -> Tensor:
        features = [
            net(to_images(observation[:, part.columns], tuple(part.space.shape or ())))
            for part, net in zip(self.images, self.nets, strict=True)
        ]
        if self.mlp:
            features.append(self.mlp(observation[:, self._columns]))
        return torch.cat(features, -1)


class ChannelNorm(nn.LayerNorm):
    """A layer that normalizes the channels of images [N, C, H, W] at each position to mean 0 and variance 1."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def add_layer_norms(trunk: nn.Module) -> nn.Module:
    """Puts a layer normalization between each layer of a trunk of this file and its ReLU or tanh; returns the trunk.

    An output that is already normalized for each image stays unchanged. Source: Ba et al. 2016; for Q-learning without
    a target network, Gallici et al. 2025 (PQN), section 3."""
    for net in [*trunk.modules()]:
        if isinstance(net, ConvNet):
            net.convolutions, net.norm = with_layer_norms(net.convolutions), nn.LayerNorm(net.num_features)
        elif isinstance(net, MLP):
            net.layers = with_layer_norms(net.layers)
    return trunk


def with_layer_norms(layers: nn.Sequential) -> nn.Sequential:
    """Returns the layers with a normalization before each ReLU or tanh that follows a layer with weights."""
    modules: list[nn.Module] = []
    for layer, next_layer in pairwise((*layers, None)):
        modules.append(layer)
        if isinstance(next_layer, nn.ReLU | nn.Tanh):
            if isinstance(layer, nn.Conv2d):
                modules.append(ChannelNorm(layer.out_channels))
            elif isinstance(layer, nn.Linear):
                modules.append(nn.LayerNorm(layer.out_features))
    return nn.Sequential(*modules)


def _parts(spec: EnvSpec) -> list[Part]:
    return [] if spec.nested_space is None else parts_of(spec.nested_space)


def to_images(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns the pictures in rows [N, ...] as [N, C, H, W]. shape: the shape of the environment's pictures."""
    image = rows.reshape(-1, *shape)
    if len(shape) == 2:
        return image.unsqueeze(1)
    image = image.movedim(-1, -3) if is_channels_last(shape[-3:]) else image
    return image.flatten(1, -3)


NETWORKS: dict[str, Callable[[EnvSpec], nn.Module]] = {
    "a3c": a3c_net,
    "nature": nature_cnn,
    "nature_half": partial(nature_cnn, filters=(16, 32, 32), num_features=256),  # for machines with few cores
    # CuLE's A2C, PPO and V-trace examples: 4x84x84 -> 32x20x20 -> 64x9x9 -> 32x7x7 -> 512
    "cule": partial(ConvNet, layers=[(32, 8, 4, 0), (64, 4, 2, 0), (32, 3, 1, 0)], num_features=512),
    # A3C-Net with padded convolutions, as in the code of GA3C: 4x84x84 -> 16x21x21 -> 32x11x11 -> 256
    "ga3c": partial(ConvNet, layers=[(16, 8, 4, "same"), (32, 4, 2, "same")], num_features=256),
    # GA3C's larger network with this first stride (Babaeizadeh et al. 2017, footnote 2): with 4,
    # 4x84x84 -> 32x21x21 -> 32x11x11 -> 64x6x6 -> 256
    **{
        f"ga3c_large_{stride}": partial(
            ConvNet, layers=[(32, 8, stride, "same"), (32, 4, 2, "same"), (64, 4, 2, "same")], num_features=256
        )
        for stride in (4, 3, 2, 1)
    },
    # For vectors: A3C's (Mnih et al. 2016, supplement, section 3), for Q-learning, for actor-critics
    "a3c_mlp": partial(MLP, sizes=(200,), activation=nn.ReLU),
    "wide": partial(MLP, sizes=(256, 256), activation=nn.ReLU),
    "wide_tanh": partial(MLP, sizes=(256, 256), activation=nn.Tanh),
}
"""The trunks that `--network` accepts by name."""
