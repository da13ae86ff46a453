"""Action distributions as functions of a network's output. A sample is a function of given noise, so that acting is
reproducible whatever the order in which environments are served.

All have: `num_outputs` of the linear layer before; `parameters_of(output)`, which are policy_outputs and learned from;
`sample`, `mode`, `log_probability`, `entropy` of parameters; `num_previous` and `encode`, an action as a network's
input. Probabilities and entropies are those of actions as they were chosen. What the environment is sent may be clipped
to its bounds (envs/spaces.py: to_env); that changes nothing here.
"""

import math
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.errors import UsageError, unknown

MIN_VARIANCE = 1e-4  # of the spherical Gaussian: what softplus gives underflows to 0


class Categorical(nn.Module):
    """One of A actions. Parameters are logits [..., A], actions int64 [...], noise uniform [...]."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.num_outputs = self.num_previous = num_actions
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

    def encode(self, action: Tensor) -> Tensor:
        """Actions [N] as a network's input: one-hot [N, A] float32."""
        return (action.unsqueeze(-1) == torch.arange(self.num_outputs, device=action.device)).float()


class MultiCategorical(nn.Module):
    """D independent choices, the d-th one of A_d actions, for MultiDiscrete and MultiBinary.

    Parameters are the choices' logits one after the other [..., sum A_d], actions int64 [..., D], noise uniform
    [..., D]. Log-probability and entropy are sums over the choices.
    """

    def __init__(self, nums_actions: list[int]):
        super().__init__()
        self.num_outputs = self.num_previous = sum(nums_actions)
        self.noise_shape: tuple[int, ...] = (len(nums_actions),)
        count = torch.tensor(nums_actions)
        choice = torch.arange(int(count.max()))
        first = count.cumsum(0) - count
        exists = choice < count.unsqueeze(-1)  # [D, max A_d]
        self._where: Tensor  # of each choice's logits among all of them [D, max A_d]
        self._pads: Tensor
        self._last: Tensor
        self._owner: Tensor  # d of each logit, and its action [sum A_d]
        self._action: Tensor
        self.register_buffer("_where", torch.where(exists, first.unsqueeze(-1) + choice, 0), persistent=False)
        self.register_buffer("_pads", ~exists, persistent=False)
        self.register_buffer("_last", count - 1, persistent=False)
        self.register_buffer("_owner", torch.arange(len(count)).repeat_interleave(count), persistent=False)
        self.register_buffer("_action", choice.expand(exists.shape)[exists], persistent=False)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand((*shape, *self.noise_shape), generator=generator, device=generator.device)

    def parameters_of(self, output: Tensor) -> Tensor:
        return output

    def _choices(self, logits: Tensor) -> Tensor:
        """The logits of each choice [..., D, max A_d], -inf where there is no such action."""
        return logits[..., self._where].masked_fill(self._pads, -math.inf)

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Of each choice, the action whose interval of the cumulative distribution holds the noise."""
        cumulative = self._choices(logits).softmax(-1).cumsum(-1)
        # Rounding can leave the last sum below 1 and the noise above it: that noise means the last action.
        return torch.minimum((cumulative <= noise.unsqueeze(-1)).sum(-1), self._last)

    def mode(self, logits: Tensor) -> Tensor:
        return self._choices(logits).argmax(-1)

    def log_probability(self, logits: Tensor, action: Tensor) -> Tensor:
        """action [..., D], or in the action space's own shape."""
        log_p = self._choices(logits).log_softmax(-1)
        chosen = action.reshape(log_p.shape[:-1])
        return log_p.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """-sum p log p [...] over all choices, in nats."""
        log_p = self._choices(logits).log_softmax(-1).masked_fill(self._pads, 0.0)
        p = log_p.exp().masked_fill(self._pads, 0.0)
        return -(p * log_p).sum((-1, -2))

    def encode(self, action: Tensor) -> Tensor:
        """Actions [N, D] as a network's input: one-hot, one choice after the other [N, sum A_d] float32."""
        return (action.flatten(1)[:, self._owner] == self._action).float()


class DiagonalGaussian(nn.Module):
    """D independent normals. Parameters are means and log standard deviations [..., 2D], noise is normal [..., D].

    The log standard deviations are learned, but do not depend on the observation. Actions are not clipped here: the
    environment clips what it is sent to its bounds, the probability is that of the action before.
    """

    def __init__(self, num_dimensions: int, initial_log_std: float = 0.0):
        super().__init__()
        self.num_outputs = self.num_previous = num_dimensions
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
        """action [..., D], or in the action space's own shape."""
        mean, log_std = parameters.chunk(2, -1)
        z = (action.reshape(mean.shape) - mean) / log_std.exp()
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_std = parameters.chunk(2, -1)[1]
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def encode(self, action: Tensor) -> Tensor:
        """Actions [N, ...] as a network's input: the numbers, not clipped [N, D] float32."""
        return action.reshape(len(action), self.num_previous).float()


class SphericalGaussian(nn.Module):
    """D independent normals of one variance, both of the observation (Mnih et al. 2016, supplement, section 3).

        sigma^2 = softplus(x) + MIN_VARIANCE,    parameters: means and sigma^2 [..., D + 1], noise normal [..., D]

    The paper has no least variance; without one, a softplus that underflows makes infinite densities. Actions are not
    clipped here: the environment clips what it is sent to its bounds, the probability is that of the action before.
    """

    def __init__(self, num_dimensions: int):
        super().__init__()
        self.num_outputs, self.num_previous = num_dimensions + 1, num_dimensions
        self.noise_shape: tuple[int, ...] = (num_dimensions,)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn((*shape, *self.noise_shape), generator=generator, device=generator.device)

    def parameters_of(self, output: Tensor) -> Tensor:
        variance = nn.functional.softplus(output[..., -1:]) + MIN_VARIANCE
        return torch.cat([output[..., :-1], variance], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return parameters[..., :-1] + parameters[..., -1:].sqrt() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters[..., :-1]

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """-1/2 (|a - mu|^2 / sigma^2 + D log(2 pi sigma^2)); action [..., D], or in the action space's own shape."""
        mean, variance = parameters[..., :-1], parameters[..., -1]
        distance = (action.reshape(mean.shape) - mean).square().sum(-1)
        return -0.5 * (distance / variance + self.num_previous * (2 * math.pi * variance).log())

    def entropy(self, parameters: Tensor) -> Tensor:
        """D/2 (log(2 pi sigma^2) + 1), the differential entropy of all D dimensions.

        The paper prints 1/2 (log(2 pi sigma^2) + 1), the entropy of one dimension. Here it is that of the whole
        distribution, as the log-probability is that of the whole action, and as the other distributions have it. With
        the entropy's weight divided by D it is the paper's to the letter."""
        return 0.5 * self.num_previous * ((2 * math.pi * parameters[..., -1]).log() + 1)

    def encode(self, action: Tensor) -> Tensor:
        """Actions [N, ...] as a network's input: the numbers, not clipped [N, D] float32."""
        return action.reshape(len(action), self.num_previous).float()


Distribution = Categorical | MultiCategorical | DiagonalGaussian | SphericalGaussian

GAUSSIANS = ("diagonal", "spherical")


def make_distribution(action_space: gymnasium.Space[Any], gaussian: str = "diagonal") -> Distribution:
    """The distribution over an action space. gaussian: diagonal | spherical, for Box.

    Raises UsageError for an unknown Gaussian, and a space other than Discrete, MultiDiscrete, MultiBinary and Box."""
    if gaussian not in GAUSSIANS:
        raise unknown("gaussian", gaussian, GAUSSIANS, f"(there are {', '.join(GAUSSIANS)})")
    if isinstance(action_space, gymnasium.spaces.Discrete):
        return Categorical(int(action_space.n))
    if isinstance(action_space, gymnasium.spaces.MultiDiscrete):
        return MultiCategorical(action_space.nvec.flatten().tolist())
    if isinstance(action_space, gymnasium.spaces.MultiBinary):
        return MultiCategorical([2] * math.prod(action_space.shape))
    if isinstance(action_space, gymnasium.spaces.Box):
        size = math.prod(action_space.shape)
        return DiagonalGaussian(size) if gaussian == "diagonal" else SphericalGaussian(size)
    raise UsageError(
        f"actions of type {type(action_space).__name__} are not supported; "
        "use Discrete, MultiDiscrete, MultiBinary or Box"
    )
