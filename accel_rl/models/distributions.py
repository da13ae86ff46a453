"""Action distributions as functions of a network's output. A sample is a function of given noise, so that acting is
reproducible whatever the order in which environments are served."""

import math
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.errors import UsageError


class Categorical(nn.Module):
    """One of A actions. Parameters are logits [..., A], actions int64 [...], noise uniform [...]."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.num_outputs = num_actions
        self.noise_shape: tuple[int, ...] = ()

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    def parameters_of(self, output: Tensor) -> Tensor:
        return output

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """The action whose interval of the cumulative distribution holds the noise."""
        cumulative = logits.softmax(-1).cumsum(-1)
        # Rounding can leave the last sum below 1 and the noise above it: that noise means the last action.
        return (cumulative[..., :-1] <= noise.unsqueeze(-1)).sum(-1)

    def mode(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def log_probability(self, logits: Tensor, action: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """-sum p log p [...], in nats; finite where p underflows to 0."""
        log_p = logits.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)


class DiagonalGaussian(nn.Module):
    """D independent normals. Parameters are means and log standard deviations [..., 2D], noise is normal [..., D].

    The log standard deviations are learned, but do not depend on the observation. Actions are not clipped here: the
    environment clips what it is sent to its bounds, the probability is that of the action before.
    """

    def __init__(self, num_dimensions: int, initial_log_std: float = 0.0):
        super().__init__()
        self.num_outputs = num_dimensions
        self.noise_shape: tuple[int, ...] = (num_dimensions,)
        self.log_std = nn.Parameter(torch.full((num_dimensions,), initial_log_std))

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn((*shape, *self.noise_shape), generator=generator, device=generator.device)

    def parameters_of(self, output: Tensor) -> Tensor:
        return torch.cat([output, self.log_std.expand_as(output)], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[0]

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        z = (action.flatten(mean.dim() - 1) - mean) / log_std.exp()
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_std = parameters.chunk(2, -1)[1]
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def make_distribution(action_space: gymnasium.Space[Any]) -> Categorical | DiagonalGaussian:
    """Raises UsageError for a space that is neither Discrete nor Box."""
    if isinstance(action_space, gymnasium.spaces.Discrete):
        return Categorical(int(action_space.n))
    if isinstance(action_space, gymnasium.spaces.Box):
        return DiagonalGaussian(math.prod(action_space.shape))
    raise UsageError(f"actions of type {type(action_space).__name__} are not supported; use Discrete or Box")
