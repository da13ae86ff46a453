"""Observations and rewards brought to the scale of 1 by their own running moments.

Nothing here makes a GPU wait. What is summed over learners goes through a function Tensor -> Tensor, the update's `sum`
(the identity when alone); moments are float64, so that they are sums of the same numbers wherever these were seen.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError

Sum = Callable[[Tensor], Tensor]

LIMIT = 10.0  # of normalised values, in standard deviations
EPSILON = 1e-8  # added to the variance


class RunningMoments(nn.Module):
    """Count, mean and variance (that of a population) of all samples so far, elementwise.

    Batches merge by the formula of Chan, Golub & LeVeque 1979: with n, m, S the count, the mean and the sum of squared
    deviations of what came before, and b for the batch,

        m' = m + (m_b - m) * n_b / (n + n_b),    S' = S + S_b + (m_b - m)^2 * n * n_b / (n + n_b)
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, shape: tuple[int, ...] = ()):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(shape, dtype=torch.float64))  # sum of squared deviations

    @property
    def variance(self) -> Tensor:
        """0 while there are no samples."""
        return self.square / self.count.clamp(min=1)

    @torch.no_grad()
    def update(self, samples: Tensor, sum_over_learners: Sum, valid: Tensor | None = None) -> None:
        """samples [N, ...]; valid [N] bool: which of them count (all), whatever the others hold."""
        values = samples.to(torch.float64)
        valid = torch.ones(len(values), dtype=torch.bool, device=values.device) if valid is None else valid
        valid = valid.reshape(-1, *[1] * self.mean.dim())  # [N, 1, ...]
        # Not only by their weight: samples that are not valid may be nan, and 0 * nan is nan.
        values, weight = values.masked_fill(~valid, 0.0), valid.to(torch.float64)
        # Two rounds: deviations are from the mean of the batch over all learners, so that squares do not cancel.
        total = sum_over_learners(torch.cat([weight.sum().reshape(1), values.sum(0).flatten()]))
        count, batch_mean = total[0], (total[1:] / total[0].clamp(min=1)).reshape(self.mean.shape)
        square = sum_over_learners((weight * (values - batch_mean).square()).sum(0))
        whole = (self.count + count).clamp(min=1)
        difference = batch_mean - self.mean
        # In place: a captured graph goes on reading these tensors.
        self.square.add_(square + difference.square() * (self.count * count / whole))
        self.mean.add_(difference * (count / whole))
        self.count.add_(count)


class ObservationNorm(nn.Module):
    """(observation - mean) / sqrt(variance + 1e-8), within +-10; the observation itself before the first update.

    Raises UsageError for pictures, whose scale is known, and for observations that are no vectors of numbers.
    """

    def __init__(self, spec: EnvSpec):
        super().__init__()
        space = spec.observation_space
        if not spec.is_numbers:
            raise UsageError(
                f"normalize_observations: observations are {spec.nested_space or space}; only vectors of numbers can "
                "be normalised: leave it switched off"
            )
        self.moments = RunningMoments(spec.observation_shape)

    def forward(self, observation: Tensor) -> Tensor:
        """observation [N, ...] -> float32 [N, ...]."""
        moments = self.moments
        scaled = (observation - moments.mean) / (moments.variance + EPSILON).sqrt()
        return torch.where(moments.count > 0, scaled.clamp(-LIMIT, LIMIT), observation).to(torch.float32)

    def update(self, observation: Tensor, sum_over_learners: Sum, valid: Tensor | None = None) -> None:
        """observation [N, ...]; valid [N] bool: which of them count (all)."""
        self.moments.update(observation, sum_over_learners, valid)


class ReturnScale(nn.Module):
    """Divides rewards by the standard deviation of the running discounted return, within +-10; no mean is subtracted.

        G_t = discount * (1 - done_{t-1}) * G_{t-1} + r_t,  from 0, of each environment

    Rewards stay as they are before the first update, or while all returns were the same.
    """

    running: Tensor

    def __init__(self, num_envs: int, discount: float):
        super().__init__()
        self.discount = discount
        self.moments = RunningMoments()
        self.register_buffer("running", torch.zeros(num_envs, dtype=torch.float64))  # G after the last step [B]

    def scale(self, reward: Tensor) -> Tensor:
        """reward [...] -> the same shape and dtype."""
        variance = self.moments.variance
        scaled = (reward / (variance + EPSILON).sqrt()).clamp(-LIMIT, LIMIT)
        return torch.where(variance > 0, scaled, reward).to(reward.dtype)

    @torch.no_grad()
    def update(
        self, reward: Tensor, done: Tensor, valid: Tensor, sum_over_learners: Sum, is_first: Tensor | None = None
    ) -> None:
        """The next steps of all environments, unscaled; all [T, B]. Steps that are not valid add nothing to returns.

        is_first: a new game starts before this step, whatever the step before was (an environment was replaced)."""
        reward = reward.to(torch.float64).masked_fill(~valid, 0.0)
        return_ = torch.empty_like(reward)  # G [T, B]
        running = self.running.clone()
        for t in range(reward.shape[0]):
            running = running if is_first is None else running.masked_fill(is_first[t], 0.0)
            running = return_[t] = self.discount * running + reward[t]
            running = running.masked_fill(done[t], 0.0)
        self.running.copy_(running)
        self.moments.update(return_.flatten(), sum_over_learners, valid.flatten())
