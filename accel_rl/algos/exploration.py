"""Epsilon-greedy exploration: epsilon as a function of the run's agent step, for each environment."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel_rl.config.fields import basic_setting, setting
from accel_rl.errors import UsageError

MIN_ODDS = 1e-6  # smallest sum of all odds; much smaller sums are 0 in float32


@dataclass(frozen=True)
class ExplorationSettings:
    epsilon_final: tuple = basic_setting(  # type: ignore[type-arg]
        (0.1,), "final probability of a random action; if there are several, each environment draws one"
    )
    epsilon_odds: tuple | None = setting(  # type: ignore[type-arg]
        None, "probabilities of the values of epsilon_final, as in 0.4,0.3,0.3; null: equal"
    )
    epsilon_steps: int = basic_setting(
        1_000_000, "agent steps over which epsilon falls linearly from 1 to its final value", least=1
    )
    epsilon_eval: float = setting(0.05, "probability of a random action in evaluations", least=0, most=1)

    @property
    def odds(self) -> tuple[float, ...]:
        """The relative probability of each final value."""
        return self.epsilon_odds or (1,) * len(self.epsilon_final)

    def check_epsilons(self) -> None:
        """Raises UsageError for epsilons and odds that are not probabilities, or that differ in number."""
        finals, odds = self.epsilon_final, self.odds
        for name, values in (("epsilon_final", finals), ("epsilon_odds", odds)):
            if not values or not all(isinstance(value, int | float) and 0 <= value <= 1 for value in values):
                raise UsageError(f"{name}={list(values)} must be one or more numbers from 0 to 1, as in 0.1,0.01,0.5")
        if len(odds) != len(finals) or sum(odds) < MIN_ODDS:
            raise UsageError(
                f"epsilon_odds={list(odds)} must give a probability for each of epsilon_final={list(finals)}, not "
                "all 0; null makes them equal"
            )


class Exploration:
    """Computes each environment's epsilon, which falls linearly from 1 to a final value.

    settings: ExplorationSettings that `check_epsilons` accepts. device: where noise is drawn, so that no rollout waits
    for a copy. seed: for drawing the final values."""

    def __init__(self, settings: Any, num_envs: int, device: torch.device | str = "cpu", seed: int = 0):
        self.steps = settings.epsilon_steps
        probabilities, generator = torch.tensor(settings.odds, dtype=torch.float), torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(probabilities, num_envs, replacement=True, generator=generator)
        self.final = torch.tensor(settings.epsilon_final, dtype=torch.float)[drawn].to(device)  # [B]

    def at(self, step: int) -> Tensor:
        """Returns epsilon [B] at an agent step of the run."""
        progress = min(1.0, step / self.steps)
        epsilon: Tensor = 1 + progress * (self.final - 1)
        return epsilon

    def state_dict(self) -> dict[str, Any]:
        return {"final": self.final}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.final = state["final"].to(self.final.device)
