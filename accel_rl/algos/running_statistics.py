"""Normalizes observations and scales returns by their running moments, as the algorithms use them."""

from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from accel_rl.algos.base import Algo
from accel_rl.models.normalize import ObservationNorm, PixelNorm, ReturnScale
from accel_rl.rollout import Rollout
from accel_rl.updates import Update


class Normalizers:
    """Normalizes observations (inside the policy) and scales returns; either may be absent.

    scales_rollouts: `normalize` scales rewards. False for an algorithm that stores unscaled ones in a replay and scales
    what it draws, since the scale still changes."""

    def __init__(
        self,
        observation_norm: ObservationNorm | PixelNorm | None,
        return_scale: ReturnScale | None,
        scales_rollouts: bool = True,
    ):
        self.observation_norm, self.return_scale = observation_norm, return_scale
        self.scales_rollouts = scales_rollouts

    @classmethod
    def of(cls, algo: Algo, scales_rollouts: bool = True) -> Self | None:
        """Returns what the settings of an algorithm ask for, or None."""
        norm, settings = algo.policy.norm, algo.settings
        scale = ReturnScale(algo.local_envs, settings.discount) if settings.normalize_returns else None
        return cls(norm, scale, scales_rollouts) if norm or scale else None

    def to(self, device: torch.device) -> None:
        """Moves the return scale to a device; the observation norm is part of the policy."""
        if self.return_scale:
            self.return_scale.to(device)

    def update(self, rollout: Rollout, update: Update) -> None:
        with update.exchange.locked_buffers(self.shared_buffers()):
            if self.observation_norm and not self.observation_norm.is_complete(rollout.first_step):
                observation = rollout.observations(0, rollout.horizon).flatten(0, 1)
                self.observation_norm.update(observation, update.sum, rollout.valid.flatten())
            if self.return_scale:
                arguments = (rollout.reward, rollout.done, rollout.valid, rollout.reset[:-1])
                return_ = update.graphed(self.return_scale.continue_returns, *arguments)
                self.return_scale.moments.update(return_.flatten(), update.sum, rollout.valid.flatten())

    def normalize(self, rollout: Rollout) -> Rollout:
        if not (self.return_scale and self.scales_rollouts):
            return rollout
        return replace(rollout, reward=self.return_scale.scale(rollout.reward))

    def shared_buffers(self) -> dict[str, Tensor]:
        modules = {"observation": self.observation_norm, "return": self.return_scale}
        return {
            f"{name}.{key}": value
            for name, module in modules.items()
            if module is not None
            for key, value in module.moments.named_buffers()
        }

    def local_state_dict(self) -> dict[str, Any]:
        """Returns the environments' discounted returns so far."""
        return {"running_return": self.return_scale.running} if self.return_scale else {}

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        if self.return_scale:
            self.return_scale.running.copy_(state["running_return"])
