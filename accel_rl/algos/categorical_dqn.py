"""Categorical DQN: a distribution over returns for each action (Bellemare et al. 2017; Stooke & Abbeel 2018, 5.4).

With double, dueling, prioritized and n-step learning it is epsilon-Rainbow: a preset, `eps_rainbow`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.base import masked_sum
from accel_rl.algos.dqn import DQN, DQNSettings
from accel_rl.algos.returns import project_distribution
from accel_rl.config.fields import setting
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork
from accel_rl.rollout import Rollout
from accel_rl.updates import Update

LEAST_PROBABILITY = 1e-6  # in divergences and as a priority


@dataclass(frozen=True)
class CategoricalDQNSettings(DQNSettings):
    atoms: int = setting(51, "returns that a distribution is over, equally far apart", least=2)
    v_min: float = setting(-10.0, "the smallest of them")
    v_max: float = setting(10.0, "the largest of them")


class CategoricalDQN(DQN):
    """Raises UsageError for v_min >= v_max, and as DQN."""

    Settings = CategoricalDQNSettings
    settings: CategoricalDQNSettings
    _num_outside: Tensor | None = None  # rewards that no return of the support can hold
    _has_told = False

    def build_policy(self, network: Network | None) -> QNetwork:
        settings = self.settings
        if settings.v_min >= settings.v_max:
            raise UsageError(f"v_min={settings.v_min:g} must be less than v_max={settings.v_max:g}")
        support = torch.linspace(settings.v_min, settings.v_max, settings.atoms)
        return QNetwork(self.spec, network, support, settings.dueling, settings.epsilon_eval)

    def loss_of(self, network: QNetwork, target: QNetwork, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        support, next_observation = network.support, batch["next_observation"]
        assert support is not None
        with torch.no_grad():
            logits = target(next_observation)  # [N, A, K]
            chooser = network(next_observation) if self.settings.double else logits
            best = network.values(chooser).argmax(-1)
            reached = batch["return_"].unsqueeze(-1) + batch["bootstrap"].unsqueeze(-1) * support  # [N, K]
            goal = project_distribution(_of_action(logits, best).softmax(-1), support, reached)
        log_p = _of_action(network(batch["observation"]), batch["action"]).log_softmax(-1)
        return cross_entropy_loss(log_p, goal, support, batch["valid"], batch.get("importance"))

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        if not self._has_told:
            outside = (rollout.reward < self.settings.v_min) | (rollout.reward > self.settings.v_max)
            count = (outside & rollout.valid).sum()
            self._num_outside = count if self._num_outside is None else self._num_outside + count
        return super().learn(rollout, update)

    def warnings(self) -> list[str]:
        count = 0 if self._has_told or self._num_outside is None else int(self._num_outside)
        if not count:
            return []
        self._has_told = True
        return [
            f"{count} rewards so far were outside of v_min={self.settings.v_min:g} ... v_max={self.settings.v_max:g}: "
            "such returns count as the nearest of these"
        ]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"has_told": self._has_told, "num_outside": self._num_outside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._has_told, outside = state["has_told"], state["num_outside"]
        self._num_outside = None if outside is None else outside.to(self.device)


def _of_action(logits: Tensor, action: Tensor) -> Tensor:
    """logits [N, A, K], action [N] -> [N, K]. (By an index, the gradient on a GPU would be sorted first.)"""
    return logits.gather(1, action.view(-1, 1, 1).expand(-1, 1, logits.shape[-1])).squeeze(1)


def cross_entropy_loss(
    log_p: Tensor, goal: Tensor, support: Tensor, valid: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum over valid samples of  -w sum_i goal_i log p_i.

    log_p, goal [N, K] over support [K]; valid, importance (w, 1 if None) [N]; gradients flow through log_p only.
    Returns the sum; its terms as sums, too; and each sample's priority, the divergence KL(goal | p) of both cut off
    below at 1e-6 [N]. Source: Bellemare et al. 2017, algorithm 1; the priority as in Stooke & Abbeel's code.
    """
    log_p = log_p.masked_fill(~valid.unsqueeze(-1), 0.0)  # here: of a nan, the gradient by a sum is nan, too
    entropies = -(goal * log_p).sum(-1)
    loss_sum = masked_sum(entropies if importance is None else entropies * importance, valid)
    p, q = goal.clamp(min=LEAST_PROBABILITY), log_p.detach().exp().clamp(min=LEAST_PROBABILITY)
    divergence = (p * (p / q).log()).sum(-1).masked_fill(~valid, 0.0)
    terms = {
        "loss": loss_sum,
        "value": masked_sum(log_p.exp() @ support, valid),
        "divergence": masked_sum(divergence, valid),
        "priority": divergence.clamp(LEAST_PROBABILITY, 1 / LEAST_PROBABILITY),
    }
    return loss_sum, {name: term.detach() for name, term in terms.items()}
