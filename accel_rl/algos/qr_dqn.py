"""QR-DQN: the quantiles of each action's return (Dabney et al. 2018).

"Distributional Reinforcement Learning with Quantile Regression", section 4. All options of DQN work with it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from accel_rl.algos.base import Stats, masked_sum
from accel_rl.algos.dqn import DQN, MAX_PRIORITY, MIN_PRIORITY, DQNSettings
from accel_rl.config.fields import basic_setting
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork
from accel_rl.replay.transitions import TransitionBatch


@dataclass(frozen=True)
class QRDQNSettings(DQNSettings):
    quantiles: int = basic_setting(200, "number of quantiles of each action's return", least=1)


class QRDQN(DQN):
    """DQN with quantile regression as its loss."""

    Settings = QRDQNSettings
    settings: QRDQNSettings

    def build_policy(self, network: Network | None) -> QNetwork:
        settings = self.settings
        return QNetwork(
            self.spec,
            network,
            dueling=settings.dueling,
            epsilon_eval=settings.epsilon_eval,
            num_quantiles=settings.quantiles,
        )

    def td_loss(self, value: Tensor, following: Tensor, batch: TransitionBatch) -> tuple[Tensor, Stats]:
        """Returns `quantile_huber_loss`; value, following [N, K]: quantiles."""
        td_target = batch.return_.unsqueeze(-1) + batch.bootstrap.unsqueeze(-1) * following
        return quantile_huber_loss(value, td_target, batch.valid, batch.importance)


def quantile_huber_loss(
    quantiles: Tensor, td_target: Tensor, valid: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of

        w sum_i mean_j |tau_i - 1{u_ij < 0}| h(u_ij),    u_ij = td_target_j - quantiles_i,    tau_i = (2i - 1) / 2K,
        h(u) = u^2 / 2 if |u| <= 1, else |u| - 1/2

    quantiles, td_target [N, K]; valid, importance (w, 1 if None) [N]; gradients flow through quantiles only. Returns
    the sum; its terms as sums, detached; and each sample's priority [N]: the distance of the two means, from 1e-6 to 1
    like DQN's. (The loss itself is not 0 if both distributions are equal.)
    Source: Dabney et al. 2018, equations 9 and 10 and algorithm 1, with kappa = 1.
    """
    K = quantiles.shape[1]
    tau = (torch.arange(K, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / K
    error = td_target.detach().unsqueeze(1) - quantiles.unsqueeze(2)  # u [N, K of i, K of j]
    error = error.masked_fill(~valid.view(-1, 1, 1), 0.0)  # before the sum, whose gradient of a nan is nan, too
    huber = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    weight = (tau.view(1, -1, 1) - (error.detach() < 0).to(tau.dtype)).abs()
    losses = (weight * huber).mean(2).sum(1)
    loss_sum = masked_sum(losses if importance is None else losses * importance, valid)
    distance = error.detach().mean((1, 2)).abs()
    terms = {
        "loss": loss_sum,
        "value": masked_sum(quantiles.mean(1), valid),
        "td_error": masked_sum(distance, valid),
        "priority": distance.clamp(MIN_PRIORITY, MAX_PRIORITY),
    }
    return loss_sum, {name: term.detach() for name, term in terms.items()}
