"""Trunks: observation [N, ...] -> features [N, F]. Initialised as in the code of Stooke & Abbeel."""

import math

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec


def make_trunk(spec: EnvSpec) -> nn.Module:
    """The default network for these observations: A3C-Net for pictures, a small MLP for everything else."""
    return A3CNet(spec.observation_shape) if spec.is_pixels else MLP(spec)


def linear(num_inputs: int, num_outputs: int, norm: float = 1.0) -> nn.Linear:
    """A linear layer whose units' weight vectors have the given norm, in random directions, and zero biases."""
    layer = nn.Linear(num_inputs, num_outputs)
    with torch.no_grad():
        layer.weight.normal_()
        layer.weight.mul_(norm / layer.weight.norm(dim=1, keepdim=True))
        layer.bias.zero_()
    return layer


def conv(num_inputs: int, num_outputs: int, kernel: int, stride: int, padding: int = 0) -> nn.Conv2d:
    """A convolution with Glorot-uniform weights and zero biases."""
    layer = nn.Conv2d(num_inputs, num_outputs, kernel, stride, padding)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class A3CNet(nn.Module):
    """Two convolutions and 256 hidden units (Mnih et al. 2016); pictures [N, C, H, W] uint8.

    104x80 frames take padding 1 in the second convolution (Stooke & Abbeel 5.1):
    4x104x80 -> 16x25x19 -> 32x12x9 -> 256.
    Others take none: 4x84x84 -> 16x20x20 -> 32x9x9 -> 256.
    """

    def __init__(self, shape: tuple[int, ...], num_features: int = 256):
        super().__init__()
        channels, *size = shape
        padding = 1 if size == [104, 80] else 0
        self.convolutions = nn.Sequential(
            conv(channels, 16, kernel=8, stride=4), nn.ReLU(), conv(16, 32, 4, 2, padding), nn.ReLU(), nn.Flatten()
        )
        with torch.no_grad():
            num_outputs = self.convolutions(torch.zeros(1, *shape)).shape[1]
        self.hidden = linear(num_outputs, num_features)
        self.num_features = num_features

    def forward(self, picture: Tensor) -> Tensor:
        x = picture.to(torch.float32, memory_format=torch.channels_last) * (1 / 255)
        return torch.relu(self.hidden(self.convolutions(x)))


class MLP(nn.Module):
    """Two hidden layers of tanh units for observations without spatial structure; Discrete ones become one-hot."""

    def __init__(self, spec: EnvSpec, num_features: int = 64):
        super().__init__()
        space = spec.observation_space
        self.num_classes = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self.first_class = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        num_inputs = self.num_classes or math.prod(spec.observation_shape)
        self.layers = nn.Sequential(
            linear(num_inputs, num_features), nn.Tanh(), linear(num_features, num_features), nn.Tanh()
        )
        self.num_features = num_features

    def forward(self, observation: Tensor) -> Tensor:
        if self.num_classes:
            x = nn.functional.one_hot(observation - self.first_class, self.num_classes).float()
        else:
            x = observation.flatten(1).float()
        return self.layers(x)  # type: ignore[no-any-return]
