"""Algorithms that explode on purpose, unless their learning rate is low."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.base import Stats
from accel_rl.config.fields import setting
from accel_rl.rollout import Rollout
from accel_rl.updates import Loss

TAME = 1e-3  # up to this learning rate nothing goes wrong


@dataclass(frozen=True)
class ExplodingSettings(A2CSettings):
    learning_rate: float = setting(2e-3, "step size", above=0)
    at_rollout: int = setting(7, "the rollout that goes wrong, counted from 1", least=1)
    how: str = setting("loss", "what goes wrong", choices=("loss", "gradient", "several", "raise"))
    silent: bool = setting(False, "no statistics")


class InfiniteGradient:
    """An update whose loss is finite and whose gradient is not."""

    def __init__(self, update: Any, parameter: Tensor):
        self.update, self.parameter = update, parameter
        self.graphed = update.graphed

    def minimize(self, loss: Loss, batch: tuple[Any, ...], *arguments: Any, **options: Any) -> Stats:
        def steep(*part: Any) -> tuple[Tensor, Stats]:
            loss_sum, terms = loss(*part)
            zero = (self.parameter - self.parameter.detach()).sum()
            return loss_sum + zero.sqrt(), terms

        stats: Stats = self.update.minimize(steep, batch, *arguments, **options)
        return stats


class Exploding(A2C):
    """how: loss: rewards become nan; gradient: infinite with a finite loss; several: of three updates of each rollout
    the second one's loss becomes nan; raise: an infinite gradient, after which `learn` fails."""

    Settings = ExplodingSettings
    settings: ExplodingSettings

    def learn(self, rollout: Rollout, update: Any) -> Stats:
        number = rollout.first_step // rollout.reward.numel() + 1
        settings, update_here = self.settings, update
        goes_wrong = number == settings.at_rollout and settings.learning_rate > TAME
        if goes_wrong and settings.how in ("gradient", "raise"):
            update_here = InfiniteGradient(update, self.policy.policy_head.bias)
        if settings.how == "several":
            each = []
            for index in range(3):
                this = without_rewards(rollout) if goes_wrong and index == 1 else rollout
                each.append(super().learn(this, update_here))
            stats = {name: torch.stack([one[name] for one in each]) for name in each[0]}  # [U]
            stats["last"] = each[-1]["loss"]
        else:
            wrong_loss = goes_wrong and settings.how == "loss"
            stats = super().learn(without_rewards(rollout) if wrong_loss else rollout, update_here)
        if goes_wrong and settings.how == "raise":
            raise ValueError("cannot go on")
        return {} if settings.silent else stats


def without_rewards(rollout: Rollout) -> Rollout:
    return replace(rollout, reward=torch.full_like(rollout.reward, torch.nan))
