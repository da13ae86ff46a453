"""Defines action distributions, parameterized by a network's output.

A sample is a function of given noise, so acting is reproducible whatever the order in which environments are served.

Every distribution has
    num_outputs               the size of the linear layer that feeds it
    to_parameters(output)     the parameters, which are stored with the rollout and learned from
    draw_noise                noise to sample from, for many steps at once
    sample, mode, log_probability, entropy      functions of the parameters
    encoded_size, encode      an action as input of a network

Probabilities and entropies are those of the chosen actions, even if the action sent to the environment is clipped to
its bounds (envs/spaces/conversion.py: to_env_action).
"""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.envs.spaces.conversion import parts_of
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.cumulative_sum import cumulative_sum
from accel_rl.models.masks import sample_possible

MIN_VARIANCE = 1e-4  # for the spherical Gaussian, since softplus underflows to 0


class Categorical(nn.Module):
    """A choice among A actions. Parameters are logits [..., A], actions int64 [...], noise uniform [...].

    log_epsilon: e; log-probability and entropy are log(p + e) and -sum p log(p + e); their gradients stay bounded where
    p vanishes (Babaeizadeh et al. 2017, GA3C, equation 5). is_masked: no action of p = 0 is ever sampled.
    """

    def __init__(self, num_actions: int, log_epsilon: float = 0.0, is_masked: bool = False):
        super().__init__()
        self.log_epsilon, self.is_masked = log_epsilon, is_masked
        self.num_outputs = self.encoded_size = num_actions
        self.noise_shape: tuple[int, ...] = ()

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    def to_parameters(self, output: Tensor) -> Tensor:
        return output

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Returns the action whose interval of the cumulative distribution contains the noise."""
        if self.is_masked:
            return sample_possible(logits.softmax(-1), noise)
        # Rounding can leave the last cumulative sum below the noise, which then selects the last action.
        if torch.is_inference_mode_enabled() and logits.dim() > 1 and not logits.is_cuda:
            # NumPy's calls take less time. Like PyTorch, it adds in float64.
            sums = np.add.accumulate(logits.softmax(-1).numpy(), -1, np.float64).astype(np.float32)
            return torch.from_numpy(np.add.reduce(sums[..., :-1] <= noise.numpy()[..., None], -1, np.int64))
        cumulative = cumulative_sum(logits.softmax(-1))
        return (cumulative[..., :-1] <= noise.unsqueeze(-1)).sum(-1)

    def mode(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def log_probability(self, logits: Tensor, action: Tensor) -> Tensor:
        return self._add_epsilon(logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1))

    def entropy(self, logits: Tensor) -> Tensor:
        """Returns -sum p log p [...], in nats; finite where p underflows to 0."""
        log_p = logits.log_softmax(-1)
        return -(log_p.exp() * self._add_epsilon(log_p)).sum(-1)

    def _add_epsilon(self, log_p: Tensor) -> Tensor:
        """Returns log(p + e), also exact near p = 0 and p = 1."""
        if not self.log_epsilon:
            return log_p
        return torch.logaddexp(log_p, log_p.new_full((), math.log(self.log_epsilon)))

    def encode(self, action: Tensor) -> Tensor:
        """Returns one-hot vectors of actions [N], float32 [N, A]."""
        return (action.unsqueeze(-1) == torch.arange(self.num_outputs, device=action.device)).float()


class MultiCategorical(nn.Module):
    """D independent choices, the d-th among A_d actions; for MultiDiscrete and MultiBinary spaces.

    Parameters are the concatenated logits of all choices [..., sum A_d], actions int64 [..., D], noise uniform
    [..., D]. Log-probability and entropy are sums over the choices. is_masked: no action of p = 0 is ever sampled.
    """

    def __init__(self, nums_actions: list[int], is_masked: bool = False):
        super().__init__()
        self.is_masked = is_masked
        self.num_outputs = self.encoded_size = sum(nums_actions)
        self.noise_shape: tuple[int, ...] = (len(nums_actions),)
        num_actions = torch.tensor(nums_actions)  # [D]
        action = torch.arange(int(num_actions.max()))
        first = num_actions.cumsum(0) - num_actions
        exists = action < num_actions.unsqueeze(-1)  # [D, max A_d]
        self._logit_index: Tensor  # position of each choice's logits among all of them [D, max A_d]
        self._is_padding: Tensor  # [D, max A_d]
        self._last_action: Tensor  # [D]
        self._choice_of_logit: Tensor  # d [sum A_d]
        self._action_of_logit: Tensor  # [sum A_d]
        self.register_buffer("_logit_index", torch.where(exists, first.unsqueeze(-1) + action, 0), persistent=False)
        self.register_buffer("_is_padding", ~exists, persistent=False)
        self.register_buffer("_last_action", num_actions - 1, persistent=False)
        choice_of_logit = torch.arange(len(num_actions)).repeat_interleave(num_actions)
        self.register_buffer("_choice_of_logit", choice_of_logit, persistent=False)
        self.register_buffer("_action_of_logit", action.expand(exists.shape)[exists], persistent=False)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand((*shape, *self.noise_shape), generator=generator, device=generator.device)

    def to_parameters(self, output: Tensor) -> Tensor:
        return output

    def _choices(self, logits: Tensor) -> Tensor:
        """Returns the logits by choice [..., D, max A_d], -inf for actions that a choice does not have."""
        return logits[..., self._logit_index].masked_fill(self._is_padding, -math.inf)

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Returns, for each choice, the action whose interval of the cumulative distribution contains the noise."""
        if self.is_masked:
            return sample_possible(self._choices(logits).softmax(-1), noise)
        cumulative = cumulative_sum(self._choices(logits).softmax(-1))
        # Rounding can leave the last cumulative sum below the noise, which then selects the last action.
        return torch.minimum((cumulative <= noise.unsqueeze(-1)).sum(-1), self._last_action)

    def mode(self, logits: Tensor) -> Tensor:
        return self._choices(logits).argmax(-1)

    def log_probability(self, logits: Tensor, action: Tensor) -> Tensor:
        """Returns log p(action) [...]; action [..., D], or in the action space's own shape."""
        log_p = self._choices(logits).log_softmax(-1)
        chosen = action.reshape(log_p.shape[:-1])
        return log_p.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Returns -sum p log p [...] over all choices, in nats."""
        log_p = self._choices(logits).log_softmax(-1).masked_fill(self._is_padding, 0.0)
        p = log_p.exp().masked_fill(self._is_padding, 0.0)
        return -(p * log_p).sum((-1, -2))

    def encode(self, action: Tensor) -> Tensor:
        """Returns actions [N, D] as concatenated one-hot vectors, float32 [N, sum A_d]."""
        return (action.flatten(1)[:, self._choice_of_logit] == self._action_of_logit).float()


class Gaussian(nn.Module):
    """The base class of D independent normal distributions. Noise is normal [..., D]."""

    def __init__(self, num_dimensions: int, num_outputs: int):
        super().__init__()
        self.num_outputs, self.encoded_size = num_outputs, num_dimensions
        self.noise_shape: tuple[int, ...] = (num_dimensions,)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn((*shape, *self.noise_shape), generator=generator, device=generator.device)

    def encode(self, action: Tensor) -> Tensor:
        """Returns actions [N, ...] unclipped, float32 [N, D]."""
        return action.reshape(-1, self.encoded_size).float()


class DiagonalGaussian(Gaussian):
    """Normals with a learned std per dimension, the same for all observations. Parameters: means, log stds [..., 2D].

    log_std_init: for all dimensions."""

    def __init__(self, num_dimensions: int, log_std_init: float = 0.0):
        super().__init__(num_dimensions, num_outputs=num_dimensions)
        self.log_std = nn.Parameter(torch.full((num_dimensions,), log_std_init))

    def to_parameters(self, output: Tensor) -> Tensor:
        return torch.cat([output, self.log_std.expand_as(output)], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[0]

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Returns log p(action) [...]; action [..., D], or in the action space's own shape."""
        mean, log_std = parameters.chunk(2, -1)
        z = (action.reshape(mean.shape) - mean) / log_std.exp()
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_std = parameters.chunk(2, -1)[1]
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class SphericalGaussian(Gaussian):
    """Normals with one variance for all dimensions; means and variance depend on the observation.

        sigma^2 = softplus(x) + MIN_VARIANCE,    parameters: means and sigma^2 [..., D + 1]

    Source: Mnih et al. 2016, supplement, section 3. The paper has no minimum variance; without one, a softplus that
    underflows yields infinite densities.
    """

    def __init__(self, num_dimensions: int):
        super().__init__(num_dimensions, num_outputs=num_dimensions + 1)

    def to_parameters(self, output: Tensor) -> Tensor:
        variance = nn.functional.softplus(output[..., -1:]) + MIN_VARIANCE
        return torch.cat([output[..., :-1], variance], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return parameters[..., :-1] + parameters[..., -1:].sqrt() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters[..., :-1]

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Returns -1/2 (|a - mu|^2 / sigma^2 + D log(2 pi sigma^2)) [...].

        action: [..., D], or in the action space's own shape."""
        mean, variance = parameters[..., :-1], parameters[..., -1]
        distance = (action.reshape(mean.shape) - mean).square().sum(-1)
        return -0.5 * (distance / variance + self.encoded_size * (2 * math.pi * variance).log())

    def entropy(self, parameters: Tensor) -> Tensor:
        """Returns D/2 (log(2 pi sigma^2) + 1) [...], the differential entropy of all D dimensions.

        The paper prints 1/2 (log(2 pi sigma^2) + 1), the entropy of one dimension. Here, as in the other distributions,
        entropy and log-probability are those of the whole action. With the entropy weight divided by D it equals the
        paper's."""
        return 0.5 * self.encoded_size * ((2 * math.pi * parameters[..., -1]).log() + 1)


class Composite(nn.Module):
    """Independent choices of the parts of a Dict or Tuple, each by its own distribution.

    Parameters [..., sum P_i], noise and actions [..., sum D_i] concatenate those of the parts. Actions are float32 if
    those of any part are, else int64. Log-probability and entropy are sums over the parts.
    """

    def __init__(self, parts: "Sequence[Distribution]"):
        super().__init__()
        self.parts: Any = nn.ModuleList(parts)
        self._nums_outputs: list[int] = [part.num_outputs for part in parts]
        self.num_outputs: int = sum(self._nums_outputs)
        self.encoded_size: int = sum(part.encoded_size for part in parts)
        self._sizes: list[int] = [math.prod(part.noise_shape) for part in parts]  # D_i
        self.noise_shape: tuple[int, ...] = (sum(self._sizes),)
        with torch.no_grad():
            self._nums_parameters = [len(part.to_parameters(torch.zeros(part.num_outputs))) for part in parts]  # P_i

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return self._join([part.draw_noise(shape, generator) for part in self.parts])

    def to_parameters(self, output: Tensor) -> Tensor:
        outputs = torch.split(output, self._nums_outputs, -1)
        return torch.cat([part.to_parameters(own) for part, own in zip(self.parts, outputs, strict=True)], -1)

    def split_parameters(self, parameters: Tensor) -> Sequence[Tensor]:
        """Returns the parameters [..., P_i] of each part."""
        return torch.split(parameters, self._nums_parameters, -1)

    def split_action(self, action: Tensor) -> list[Tensor]:
        """Returns each part's action as its distribution needs it, [...] or [..., D_i]."""
        return [
            own if isinstance(part, Gaussian) else own.long()
            for part, own in zip(self.parts, self._split(action), strict=True)
        ]

    def _split(self, numbers: Tensor) -> list[Tensor]:
        """Returns the noise or the action of each part, [...] or [..., D_i]."""
        pairs = zip(self.parts, torch.split(numbers, self._sizes, -1), strict=True)
        return [own if part.noise_shape else own.squeeze(-1) for part, own in pairs]

    def _join(self, numbers: list[Tensor]) -> Tensor:
        """Reverses `_split`."""
        pairs = zip(self.parts, numbers, strict=True)
        return torch.cat([own if part.noise_shape else own.unsqueeze(-1) for part, own in pairs], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        parts = zip(self.parts, self.split_parameters(parameters), self._split(noise), strict=True)
        return self._join([part.sample(*own) for part, *own in parts])

    def mode(self, parameters: Tensor) -> Tensor:
        parts = zip(self.parts, self.split_parameters(parameters), strict=True)
        return self._join([part.mode(own) for part, own in parts])

    def log_probability(self, parameters: Tensor, action: Tensor) -> Tensor:
        parts = zip(self.parts, self.split_parameters(parameters), self.split_action(action), strict=True)
        return torch.stack([part.log_probability(*own) for part, *own in parts]).sum(0)

    def entropy(self, parameters: Tensor) -> Tensor:
        parts = zip(self.parts, self.split_parameters(parameters), strict=True)
        return torch.stack([part.entropy(own) for part, own in parts]).sum(0)

    def encode(self, action: Tensor) -> Tensor:
        """Returns the concatenated encoded actions of all parts, float32 [N, E]; action [N, D]."""
        parts = zip(self.parts, self.split_action(action), strict=True)
        return torch.cat([part.encode(own) for part, own in parts], -1)


Distribution = Categorical | MultiCategorical | DiagonalGaussian | SphericalGaussian | Composite

GAUSSIANS = ("diagonal", "spherical")


def make_distribution(
    action_space: gymnasium.Space[Any], gaussian: str = "diagonal", is_masked: bool = False, log_std_init: float = 0.0
) -> Distribution:
    """Returns the distribution over an action space.

    gaussian: diagonal | spherical, for Box spaces. is_masked: some logits belong to disallowed actions, for Discrete
    and MultiDiscrete spaces. log_std_init: logarithm of a diagonal Gaussian's initial std.

    Raises UsageError for an unknown Gaussian, and for spaces other than Discrete, MultiDiscrete, MultiBinary, Box, and
    Dict and Tuple of these."""
    if gaussian not in GAUSSIANS:
        raise unknown("gaussian", gaussian, GAUSSIANS, f"(there are {', '.join(GAUSSIANS)})")
    if isinstance(action_space, gymnasium.spaces.Discrete):
        return Categorical(int(action_space.n), is_masked=is_masked)
    if isinstance(action_space, gymnasium.spaces.MultiDiscrete):
        return MultiCategorical(action_space.nvec.flatten().tolist(), is_masked)
    if isinstance(action_space, gymnasium.spaces.MultiBinary):
        return MultiCategorical([2] * math.prod(action_space.shape))
    if isinstance(action_space, gymnasium.spaces.Box):
        size = math.prod(action_space.shape)
        return DiagonalGaussian(size, log_std_init) if gaussian == "diagonal" else SphericalGaussian(size)
    if isinstance(action_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        parts = parts_of(action_space)
        return Composite([make_distribution(part.space, gaussian, log_std_init=log_std_init) for part in parts])
    raise UsageError(
        f"actions of type {type(action_space).__name__} are not supported; "
        "use Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"
    )
