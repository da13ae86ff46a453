"""Reads action masks from observations' rows, and applies them to choices of actions."""

import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.cumulative_sum import cumulative_sum

DISALLOWED = -1e9
"""The logit or value of a disallowed action. Its probability is exactly 0 in float32. Unlike -inf, it keeps p log p and
all gradients finite."""


def allowed_actions(rows: Tensor, spec: EnvSpec) -> Tensor:
    """Returns the actions that the masks in rows [..., R] allow: bool [..., A]."""
    numbers: Tensor = spec.mask_in(rows).to(torch.uint8).unsqueeze(-1)
    bits = 2 ** torch.arange(8, dtype=torch.uint8, device=rows.device)
    return ((numbers & bits) != 0).flatten(-2)[..., : spec.mask_size]


def to_rows(observation: Tensor, allowed: Tensor) -> Tensor:
    """Packs observations [N, *O] and masks bool [N, A] into rows [N, R], which `allowed_actions` reads."""
    flags = torch.nn.functional.pad(allowed.long(), (0, -allowed.shape[-1] % 8))
    numbers = (flags.reshape(*flags.shape[:-1], -1, 8) * 2 ** torch.arange(8, device=allowed.device)).sum(-1)
    return torch.cat([observation.reshape(observation.shape[0], -1), numbers.to(observation.dtype)], -1)


def disallow(scores: Tensor, allowed: Tensor) -> Tensor:
    """Returns logits or values [..., A], with `DISALLOWED` for disallowed actions."""
    return scores.masked_fill(~allowed, DISALLOWED)


def nth_allowed(allowed: Tensor, n: Tensor) -> Tensor:
    """Returns the n-th [...] action, counted from 0, among those that allowed bool [..., A] marks."""
    return (cumulative_sum(allowed.long()) <= n.unsqueeze(-1)).sum(-1)


def sample_possible(p: Tensor, noise: Tensor) -> Tensor:
    """Returns the actions whose intervals of the cumulative distribution contain the noise, never an action of p = 0.

    p [..., A], noise [...] in [0, 1]. Rounding may leave the cumulative sum below the noise, and on a GPU also change
    it where p = 0."""
    is_possible = p > 0
    number = ((cumulative_sum(p) <= noise.unsqueeze(-1)) & is_possible).sum(-1)
    return nth_allowed(is_possible, torch.minimum(number, is_possible.sum(-1) - 1))
