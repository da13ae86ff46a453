"""Epsilon-greedy exploration: the share of random actions, over the run's steps and over the environments."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel_rl.config.fields import setting
from accel_rl.errors import UsageError


@dataclass(frozen=True)
class ExplorationSettings:
    epsilon_final: tuple = setting(  # type: ignore[type-arg]
        (0.1,), "share of random actions in the end; several: each environment draws one of them for itself"
    )
    epsilon_odds: tuple | None = setting(  # type: ignore[type-arg]
        None, "probabilities of these, as in 0.4,0.3,0.3; null: equal ones"
    )
    epsilon_steps: int = setting(1_000_000, "agent steps until then, from 1 at step 0, linearly", least=1)
    epsilon_eval: float = setting(0.05, "share of random actions in evaluations", least=0, most=1)


class Exploration:
    """The share of random actions of each environment; where there are several final ones, each draws one by the seed.

    device: where noise is drawn, so that no rollout waits for it. Raises UsageError for shares and odds that are not
    numbers from 0 to 1, or not equally many."""

    def __init__(self, settings: Any, num_envs: int, device: torch.device | str = "cpu", seed: int = 0):
        finals, odds = settings.epsilon_final, settings.epsilon_odds or (1,) * len(settings.epsilon_final)
        for name, values in (("epsilon_final", finals), ("epsilon_odds", odds)):
            if not values or not all(isinstance(value, int | float) and 0 <= value <= 1 for value in values):
                raise UsageError(f"{name}={list(values)} must be numbers from 0 to 1, as in 0.1,0.01,0.5")
        if len(odds) != len(finals) or not any(odds):
            raise UsageError(
                f"epsilon_odds={list(odds)} must be a probability for each of epsilon_final={list(finals)}; "
                "null gives them equal ones"
            )
        self.steps = settings.epsilon_steps
        probabilities, generator = torch.tensor(odds, dtype=torch.float), torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(probabilities, num_envs, replacement=True, generator=generator)
        self.final = torch.tensor(finals, dtype=torch.float)[drawn].to(device)  # [B]

    def at(self, step: int) -> Tensor:
        """[B], at that many agent steps of the run."""
        progress = min(1.0, step / self.steps)
        share: Tensor = 1 + progress * (self.final - 1)
        return share

    def state_dict(self) -> dict[str, Any]:
        return {"final": self.final}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.final = state["final"].to(self.final.device)
