"""QR-DQN: the quantiles of each action's return (Dabney et al. 2018).

"Distributional Reinforcement Learning with Quantile Regression", section 4. All options of DQN work with it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from accel_rl.algos.base import Stats, sum_terms
from accel_rl.algos.dqn import DQN, MAX_PRIORITY, MIN_PRIORITY, DQNSettings
from accel_rl.config.fields import basic_setting
from accel_rl.hardware.cumulative_sum import cumulative_sum
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
        return QNetwork(self.spec, network, None, settings.dueling, settings.epsilon_eval, settings.quantiles)

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
    the sum; its terms as sums, detached; and each sample's priority [N]: the distance between the two means, from 1e-6
    to 1 like DQN's. (The loss itself is not 0 if both distributions are equal.)
    Source: Dabney et al. 2018, equations 9 and 10 and algorithm 1, with kappa = 1.
    """
    # Mask before any arithmetic: NaN inputs would make NaN gradients.
    quantiles, td_target = (x.masked_fill(~valid.unsqueeze(-1), 0.0) for x in (quantiles, td_target.detach()))
    K = quantiles.shape[1]
    tau = (torch.arange(K, dtype=torch.float64, device=quantiles.device) + 0.5) / K
    below, above = _huber_sums(quantiles.double(), td_target.double())
    losses = ((1 - tau) * below + tau * above).sum(1).to(quantiles.dtype) / K
    value = quantiles.detach().mean(1)
    distance = (td_target.mean(1) - value).abs()
    terms = {"loss": losses if importance is None else losses * importance, "value": value, "td_error": distance}
    loss_sum, sums = sum_terms(terms, valid)
    return loss_sum, sums | {"priority": distance.clamp(MIN_PRIORITY, MAX_PRIORITY)}


def _huber_sums(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns  sum_j h(targets_j - x_i)  over the targets below x_i, and over the others, both [N, K].

    Both are piecewise quadratic in x. Their coefficients are sums of powers of consecutive sorted targets, which are
    differences of cumulative sums. This takes K log K operations instead of K^2. x, targets [N, K], in float64."""
    ordered = targets.sort(1).values
    edges = torch.stack([torch.full_like(x, -torch.inf), x - 1, x, x + 1, torch.full_like(x, torch.inf)], 1).detach()
    rank = torch.searchsorted(ordered, edges.flatten(1)).view_as(edges)  # [N, 5, K]: how many targets are below each

    def between(values: Tensor) -> tuple[Tensor, ...]:
        """Sums values [N, K] of the targets between consecutive edges: four tensors [N, K]."""
        total = torch.nn.functional.pad(cumulative_sum(values), (1, 0))
        return total.unsqueeze(1).expand(-1, 5, -1).gather(2, rank).diff(dim=1).unbind(1)

    counts, firsts, squares = rank.diff(dim=1).unbind(1), between(ordered), between(ordered**2)
    near_below, near_above = ((counts[i] * x**2 - 2 * firsts[i] * x + squares[i]) / 2 for i in (1, 2))
    far_below, far_above = counts[0] * (x - 0.5) - firsts[0], firsts[3] - counts[3] * (x + 0.5)
    return far_below + near_below, near_above + far_above
