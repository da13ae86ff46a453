"""REINFORCE (Williams 1992) in one file: what it takes to add a method.

accel-rl train --algo docs.reinforce:Reinforce --env CartPole-v1 --steps 200000
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from accel_rl.algos import Algo, AlgoSettings
from accel_rl.algos.returns import discounted_return
from accel_rl.config.fields import setting
from accel_rl.rollout import Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class ReinforceSettings(AlgoSettings):
    learning_rate: float = setting(5e-3, "step size of the optimizer", above=0)
    optimizer: str = setting("adam", "optimizer")
    normalize: bool = setting(True, "subtract the mean return, divide by its std: the simplest baseline")


class Reinforce(Algo):
    """Monte-Carlo policy gradient: no critic, no bootstrapping, whole episodes only."""

    Settings = ReinforceSettings
    defaults: ClassVar[dict[str, Any]] = {"horizon": 256, "eval_greedy": True}
    settings: ReinforceSettings

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        reward, done = rollout.reward, rollout.done  # [T, B]
        # Steps whose episode continues beyond the rollout have no return yet: they teach nothing.
        is_whole = done.flip(0).cumsum(0).flip(0) > 0
        mask = (is_whole & rollout.valid).float()
        num_samples = mask.sum()

        return_ = discounted_return(
            reward, done, torch.zeros(rollout.num_envs, device=reward.device), self.settings.discount
        )
        if self.settings.normalize:
            count = update.sum(num_samples).clamp(min=1)
            mean = update.sum((mask * return_).sum()) / count
            variance = update.sum((mask * (return_ - mean).square()).sum()) / count
            return_ = (return_ - mean) / (variance.sqrt() + 1e-6)

        samples = rollout.samples()
        parameters, _ = self.policy(samples.observation)
        log_probability = self.policy.distribution.log_probability(parameters, samples.action)
        loss_sum = -(mask.flatten() * log_probability * return_.flatten()).sum()
        grad_norm = update.step(loss_sum, num_samples, self.learning_rate(rollout.first_step))
        return {"loss": loss_sum.detach() / num_samples.clamp(min=1), "grad_norm": grad_norm}
