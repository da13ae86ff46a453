"""Categorical DQN: a distribution over returns for each action (Bellemare et al. 2017; Stooke & Abbeel 2018, 5.4).

With double, dueling, prioritized and n-step learning it is epsilon-Rainbow, the preset `eps_rainbow`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from accel_rl.algos.base import RunInfo, Stats, masked_sum, sum_terms
from accel_rl.algos.dqn import DQN, DQNSettings
from accel_rl.algos.returns import project_distribution
from accel_rl.config.fields import basic_setting
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork
from accel_rl.replay.transitions import TransitionBatch

MIN_PROBABILITY = 1e-6  # lower bound in divergences and of priorities


@dataclass(frozen=True)
class CategoricalDQNSettings(DQNSettings):
    atoms: int = basic_setting(51, "number of evenly spaced returns in a distribution's support", least=2)
    v_min: float = basic_setting(-10.0, "smallest return in the support")
    v_max: float = basic_setting(10.0, "largest return in the support")


class CategoricalDQN(DQN):
    """DQN whose loss is the cross-entropy to a projected distribution."""

    Settings = CategoricalDQNSettings
    settings: CategoricalDQNSettings

    def validate(self, run: RunInfo) -> None:
        super().validate(run)
        if self.settings.v_min >= self.settings.v_max:
            raise UsageError(f"v_min={self.settings.v_min:g} must be less than v_max={self.settings.v_max:g}")

    def build_policy(self, network: Network | None) -> QNetwork:
        settings = self.settings
        support = torch.linspace(settings.v_min, settings.v_max, settings.atoms)
        return QNetwork(self.spec, network, support, settings.dueling, settings.epsilon_eval)

    def td_loss(self, value: Tensor, following: Tensor, batch: TransitionBatch) -> tuple[Tensor, Stats]:
        """Returns `cross_entropy_loss` to projected distributions; value, following [N, K]: logits."""
        support = self.policy.support
        assert support is not None
        with torch.no_grad():
            target_support = batch.return_.unsqueeze(-1) + batch.bootstrap.unsqueeze(-1) * support  # [N, K]
            td_target = project_distribution(following.softmax(-1), support, target_support)
            outside = (batch.return_ < self.settings.v_min) | (batch.return_ > self.settings.v_max)
        log_p = value.log_softmax(-1)
        loss_sum, terms = cross_entropy_loss(log_p, td_target, support, batch.valid, batch.importance)
        return loss_sum, terms | {"return_outside_support": masked_sum(outside.float(), batch.valid)}


def cross_entropy_loss(
    log_p: Tensor, td_target: Tensor, support: Tensor, valid: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of  -w sum_i td_target_i log p_i.

    log_p, td_target [N, K] over support [K]; valid, importance (w, 1 if None) [N]; gradients flow through log_p only.
    Returns the sum; its terms as sums, detached; and each sample's priority [N], the divergence KL(td_target | p) with
    both clipped below at 1e-6. Source: Bellemare et al. 2017, algorithm 1; the priority as in Stooke & Abbeel's code.
    """
    log_p = log_p.masked_fill(~valid.unsqueeze(-1), 0.0)  # before the sum: NaN inputs would make NaN gradients
    entropies = -(td_target * log_p).sum(-1)
    loss = entropies if importance is None else entropies * importance
    probability = log_p.detach().exp()
    p, q = td_target.clamp(min=MIN_PROBABILITY), probability.clamp(min=MIN_PROBABILITY)
    divergence = (p * (p / q).log()).sum(-1).masked_fill(~valid, 0.0)
    loss_sum, sums = sum_terms({"loss": loss, "value": probability @ support, "divergence": divergence}, valid)
    return loss_sum, sums | {"priority": divergence.clamp(MIN_PROBABILITY, 1 / MIN_PROBABILITY)}
