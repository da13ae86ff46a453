"""Returns, advantages and targets: pure functions of tensors, time first.

Shapes: T time steps, B environments, N transitions of a batch, K atoms. Index 0 is the oldest step. Results have the
dtype and device of the inputs and carry no gradient, since they are targets; inputs are not changed.

`done` [T, B] is bool and means terminated | truncated: later rewards do not count for earlier steps. On-policy, the
caller has already added `discount * value(final_observation)` to the reward of a truncated episode's last step. A
replay must not store such a value: it gives `n_step_return` the bare rewards, and bootstraps from a truncated episode's
final observation with the current target network.

`bootstrap_value` [B] is the value of the observation that follows step T-1; it is ignored where that step is done.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def discounted_return(reward: Tensor, done: Tensor, bootstrap_value: Tensor, discount: float) -> Tensor:
    """Computes discounted sums of rewards up to the end of the episode or of the rollout.

        R_t = r_t + discount * (1 - done_t) * R_{t+1},    R_T = bootstrap_value

    reward, done: [T, B]; bootstrap_value: [B]. Returns R [T, B].
    Source: Mnih et al. 2016 (A3C), supplement, Algorithm S2.
    """
    return_ = torch.empty_like(reward)  # [T, B]
    return_tp1 = bootstrap_value  # [B]
    for t in reversed(range(reward.shape[0])):
        return_tp1 = return_[t] = reward[t] + discount * _cut(return_tp1, done[t])
    return return_


@torch.no_grad()
def generalized_advantage(
    reward: Tensor, value: Tensor, done: Tensor, bootstrap_value: Tensor, discount: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Computes generalized advantage estimates, and the returns that they imply.

        delta_t = r_t + discount * (1 - done_t) * V_{t+1} - V_t,    V_T = bootstrap_value
        A_t = delta_t + discount * lambda * (1 - done_t) * A_{t+1},    A_T = 0
        R_t = A_t + V_t

    reward, value, done: [T, B]; bootstrap_value: [B]. Returns (A, R), both [T, B].
    Source: Schulman et al. 2016 (GAE), section 3, equation 16.
    """
    value_tp1 = _shift(value, bootstrap_value)
    delta = reward + discount * _cut(value_tp1, done) - value
    advantage = discounted_return(delta, done, torch.zeros_like(bootstrap_value), discount * gae_lambda)
    return advantage, advantage + value


@torch.no_grad()
def vtrace(
    reward: Tensor,
    value: Tensor,
    done: Tensor,
    bootstrap_value: Tensor,
    log_ratio: Tensor,
    discount: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Tensor, Tensor]:
    """Computes V-trace value targets v, and policy-gradient advantages that include the weight rho.

        rho_t = min(rho_bar, pi/mu),    c_t = min(c_bar, pi/mu),    log_ratio = log(pi/mu) of the action taken
        delta_t = rho_t * (r_t + discount * (1 - done_t) * V_{t+1} - V_t),    V_T = v_T = bootstrap_value
        v_t - V_t = delta_t + discount * (1 - done_t) * c_t * (v_{t+1} - V_{t+1})
        advantage_t = rho_t * (r_t + discount * (1 - done_t) * v_{t+1} - V_t)

    reward, value, done, log_ratio: [T, B]; bootstrap_value: [B]. Returns (v, advantage), both [T, B].
    Source: Espeholt et al. 2018 (IMPALA), section 4.1 and remark 1; CuLE, appendix A.1, equations 3 to 9.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    delta = rho * (reward + discount * _cut(_shift(value, bootstrap_value), done) - value)
    correction = torch.empty_like(value)  # v - V [T, B]
    correction_tp1 = torch.zeros_like(bootstrap_value)  # [B]
    for t in reversed(range(value.shape[0])):
        correction_tp1 = correction[t] = delta[t] + discount * c[t] * _cut(correction_tp1, done[t])
    target = value + correction
    target_tp1 = _shift(target, bootstrap_value)
    return target, rho * (reward + discount * _cut(target_tp1, done) - value)


@torch.no_grad()
def n_step_return(reward: Tensor, done: Tensor, discount: float, n: int) -> tuple[Tensor, Tensor]:
    """Computes sums of the next n rewards, cut at the end of the episode, without the bootstrap.

        R_t = sum_{i<n} discount^i * (1 - done_n(t, i)) * r_{t+i},    done_n(t, i) = any_{j<i} done_{t+j}

    reward, done: [T, B]. Returns (R, done_n(., n)), both [T-n+1, B]: only for steps that have n rewards.
    The TD target of Q is then R_t + discount^n * (1 - done_n) * max_a Q(s_{t+n}, a).
    Source: Hessel et al. 2018 (Rainbow), section "Multi-step learning".
    Raises ValueError unless 1 <= n <= T.
    """
    num_steps = reward.shape[0]
    if not 1 <= n <= num_steps:
        raise ValueError(
            f"n={n} does not fit: an n-step return over T={num_steps} steps needs 1 <= n <= T; "
            "choose a smaller n (at least 1) or pass more steps"
        )
    num_starts = num_steps - n + 1
    return_ = torch.zeros_like(reward[:num_starts])
    done_n = torch.zeros_like(done[:num_starts])
    for i in range(n):
        return_ += discount**i * _cut(reward[i : i + num_starts], done_n)
        done_n |= done[i : i + num_starts]
    return return_, done_n


@torch.no_grad()
def project_distribution(probabilities: Tensor, support: Tensor, target_support: Tensor) -> Tensor:
    """Projects a distribution on shifted atoms back onto the support, preserving its total mass.

        b_j = (clip(Tz_j, z_0, z_{K-1}) - z_0) / dz,    dz = (z_{K-1} - z_0) / (K - 1)
        p'_i = sum_j p_j * max(0, 1 - |b_j - i|)

    probabilities: p [N, K]; support: z [K], increasing, evenly spaced; target_support: Tz [N, K], the atoms of p.
    Returns p' [N, K].
    Source: Bellemare, Dabney & Munos 2017 (C51), section 4.1, equation 7, in units of atoms.
    """
    num_atoms = support.shape[0]
    atoms_per_unit = (num_atoms - 1) / (support[-1] - support[0])
    position = ((target_support - support[0]) * atoms_per_unit).clamp(0, num_atoms - 1)  # b [N, K]
    # In units of atoms, the shares of the two neighbors add up to 1, even in float32. Unlike the floor-and-ceiling
    # form, neither of these functions loses mass where b is an integer.
    return (scatter_mass if support.device.type == "cpu" else gather_mass)(probabilities, position)


def scatter_mass(mass: Tensor, position: Tensor) -> Tensor:
    """Splits each mass [N, K] between the two atoms next to its position, 0 to K-1; returns the atoms' sums [N, K].

    On a GPU, the sums would differ from run to run."""
    below = position.floor().clamp(max=mass.shape[1] - 2)
    share, index = position - below, below.nan_to_num().long()
    return torch.zeros_like(mass).scatter_add_(1, index, mass * (1 - share)).scatter_add_(1, index + 1, mass * share)


def gather_mass(mass: Tensor, position: Tensor) -> Tensor:
    """Computes `scatter_mass` by summing all masses for each atom: K times the work, but always in the same order."""
    atom = torch.arange(mass.shape[1], dtype=position.dtype, device=position.device)  # i [K]
    share = (1 - (position[:, None, :] - atom[:, None]).abs()).clamp(min=0)  # [N, K of i, K of j]
    return (mass[:, None, :] * share).sum(-1)


def _shift(value: Tensor, bootstrap_value: Tensor) -> Tensor:
    """Returns value_{t+1} [T, B] from value_t [T, B] and the value after the last step [B]."""
    return torch.cat([value[1:], bootstrap_value[None]])


def _cut(x_tp1: Tensor, done: Tensor) -> Tensor:
    """Returns (1 - done) * x_{t+1}."""
    # Not a product: invalid rows may hold NaN, and 0 * NaN is NaN.
    return x_tp1.masked_fill(done, 0.0)
