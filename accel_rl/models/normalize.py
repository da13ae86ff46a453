"""Normalizes observations and rewards by their running moments.

Nothing here synchronizes with a GPU. A function Tensor -> Tensor sums over learners: the update's `sum` (the identity
for a single learner). Moments are float64, so rounding does not depend on how samples are split over learners.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.layers import ByteConv

Sum = Callable[[Tensor], Tensor]

LIMIT = 10.0  # normalized values are clipped to this many stds
EPSILON = 1e-8  # added to the variance


class RunningMoments(nn.Module):
    """The running count, mean and population variance of all samples so far, elementwise.

    Batches are merged by the formula of Chan, Golub & LeVeque 1979: with n, m, S the count, the mean and the sum of
    squared differences from the mean so far, and n_b, m_b, S_b those of the batch,

        m' = m + (m_b - m) * n_b / (n + n_b),    S' = S + S_b + (m_b - m)^2 * n * n_b / (n + n_b)
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, shape: tuple[int, ...] = ()):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(shape, dtype=torch.float64))  # sum of (x - mean)^2

    @property
    def variance(self) -> Tensor:
        """The population variance [...]; 0 while there are no samples."""
        return self.square / self.count.clamp(min=1)

    @torch.no_grad()
    def update(self, samples: Tensor, sum_over_learners: Sum, valid: Tensor | None = None) -> None:
        """Adds samples [N, ...]; valid [N] bool: those that count (None: all). Others may hold anything."""
        values = samples.to(torch.float64)
        valid = torch.ones(len(values), dtype=torch.bool, device=values.device) if valid is None else valid
        valid = valid.reshape(-1, *[1] * self.mean.dim())  # [N, 1, ...]
        # A weight of 0 is not enough: invalid samples may be nan, and 0 * nan is nan.
        values, weight = values.masked_fill(~valid, 0.0), valid.to(torch.float64)
        # The second sum is of differences from the batch mean over all learners, so that squares do not cancel.
        total = sum_over_learners(torch.cat([weight.sum().reshape(1), values.sum(0).flatten()]))
        count, batch_mean = total[0], (total[1:] / total[0].clamp(min=1)).reshape(self.mean.shape)
        square = sum_over_learners((weight * (values - batch_mean).square()).sum(0))
        total_count = (self.count + count).clamp(min=1)
        difference = batch_mean - self.mean
        # In place, since a captured graph keeps reading these tensors.
        self.square.add_(square + difference.square() * (self.count * count / total_count))
        self.mean.add_(difference * (count / total_count))
        self.count.add_(count)


class ObservationNorm(nn.Module):
    """A layer: (observation - mean) / sqrt(variance + 1e-8), clipped to +-10; the identity before the first update.

    Raises UsageError for observations that are not vectors of numbers.
    """

    def __init__(self, spec: EnvSpec):
        super().__init__()
        space = spec.observation_space
        if not spec.is_numbers:
            raise UsageError(
                f"normalize_observations=True: observations are {spec.nested_space or space}; only vectors of numbers "
                "and pictures of bytes can be normalized; use --no-normalize-observations"
            )
        self.spec, self.moments = spec, RunningMoments(spec.observation_shape)

    def forward(self, observation: Tensor) -> Tensor:
        """Returns the normalized observations float32 [N, ...] of observation [N, ...]."""
        moments = self.moments
        if observation.dtype == torch.bool:  # subtraction is not defined for bool
            observation = observation.byte()
        scaled = (observation - moments.mean) / (moments.variance + EPSILON).sqrt()
        return torch.where(moments.count > 0, scaled.clamp(-LIMIT, LIMIT), observation).to(torch.float32)

    def direct(self, observation: Tensor) -> Tensor:
        """Computes `forward` of vectors on a CPU, for acting, by NumPy, whose calls take less time (see direct.py)."""
        buffers: Any = self.moments._buffers  # faster than attributes
        count, mean, square = (buffers[name].numpy() for name in ("count", "mean", "square"))
        if not count:
            return observation.to(torch.float32)
        scaled = observation.numpy() - mean
        scaled /= np.sqrt(square / count + EPSILON)
        np.minimum(np.maximum(scaled, -LIMIT, out=scaled), LIMIT, out=scaled)
        return torch.from_numpy(scaled.astype(np.float32))

    def is_complete(self, first_step: int) -> bool:
        """Returns False: every rollout adds to the moments."""
        return False

    def update(self, observation: Tensor, sum_over_learners: Sum, valid: Tensor | None = None) -> None:
        """Adds observation [N, ...], rows of spec, to the moments; valid [N] bool: those that count (None: all)."""
        self.moments.update(self.spec.observation_in(observation), sum_over_learners, valid)


class Background(nn.Module):
    """A pixel's value, 0 ... 255, as the buffer `value` float32 []."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(()))


class PixelNorm(nn.Module):
    """A normalization in which first convolutions subtract the background, the first rollout's most frequent pixel.

    On an even background that is not black, updates push all weights of a filter in one direction at once, until its
    ReLU is off everywhere. In Pong, half of the first filters die this way. Source: LeCun et al. 1998, "Efficient
    BackProp", 4.3, which centers inputs for this reason.

    background: another network's; None: a new one. Raises UsageError for a network that does not begin with a
    `ByteConv`."""

    is_known = False  # True: the background comes from a trained policy
    STRIDE = 7  # uses every STRIDE-th observation

    def __init__(self, spec: EnvSpec, network: nn.Module, background: Background | None = None):
        super().__init__()
        self.spec, self.moments = spec, background or Background()
        layers = [layer for layer in network.modules() if isinstance(layer, ByteConv)]
        if not layers:
            raise UsageError(
                "normalize_observations=True: the network does not begin with a convolution of bytes, which could "
                "subtract the background; use --no-normalize-observations"
            )
        for layer in layers:
            vars(layer)["background"] = self.moments  # not as a submodule, which would be saved twice

    def forward(self, observation: Tensor) -> Tensor:
        return observation

    def is_complete(self, first_step: int) -> bool:
        """Returns whether a rollout that began at this agent step adds nothing: the background is already known."""
        return first_step > 0 or self.is_known

    @torch.no_grad()
    def update(self, observation: Tensor, sum_over_learners: Sum, valid: Tensor) -> None:
        """Finds the background of observation uint8 [N, ...], rows of spec; valid [N] bool: those that count."""
        pixels = self.spec.observation_in(observation[:: self.STRIDE]).flatten(1).to(torch.int64)
        weight = valid[:: self.STRIDE].to(torch.float64).unsqueeze(1).expand(pixels.shape)
        frequency = weight.new_zeros(256).scatter_add_(0, pixels.flatten(), weight.flatten())
        self.moments.value.copy_(sum_over_learners(frequency).argmax())


class ReturnScale(nn.Module):
    """A division of rewards by the std of the running discounted return, clipped to +-10; no mean is subtracted.

        G_t = discount * (1 - done_{t-1}) * G_{t-1} + r_t,    from 0, for each environment

    Rewards are unchanged before the first update, and while all returns are equal.
    """

    running: Tensor

    def __init__(self, num_envs: int, discount: float):
        super().__init__()
        self.discount = discount
        self.moments = RunningMoments()
        self.register_buffer("running", torch.zeros(num_envs, dtype=torch.float64))  # G after the last step [B]

    def scale(self, reward: Tensor) -> Tensor:
        """Returns the scaled reward [...], with the shape and dtype of reward [...]."""
        variance = self.moments.variance
        scaled = (reward / (variance + EPSILON).sqrt()).clamp(-LIMIT, LIMIT)
        return torch.where(variance > 0, scaled, reward).to(reward.dtype)

    @torch.no_grad()
    def continue_returns(self, reward: Tensor, done: Tensor, valid: Tensor, is_first: Tensor) -> Tensor:
        """Returns G float64 [T, B] of the next steps, and keeps the last ones.

        reward [T, B]: unscaled; invalid steps add nothing. is_first [T, B] bool: a new game starts with this step, even
        if the previous step was not done (an environment was replaced)."""
        reward = reward.to(torch.float64).masked_fill(~valid, 0.0)
        return_ = torch.empty_like(reward)  # G [T, B]
        running = self.running.clone()
        for t in range(reward.shape[0]):
            running = return_[t] = self.discount * running.masked_fill(is_first[t], 0.0) + reward[t]
            running = running.masked_fill(done[t], 0.0)
        self.running.copy_(running)
        return return_
