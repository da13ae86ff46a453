"""Action masks, as networks use them: read from observations' rows, and kept to when actions are chosen."""

import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.cumulative_sum import cumulative_sum

DISALLOWED = -1e9
"""The logit, or the value, of an action that is not allowed. Its probability is exactly 0 in float32; p log p and all
gradients are finite, which they would not be with -inf."""


def allowed_actions(rows: Tensor, spec: EnvSpec) -> Tensor:
    """Returns which actions the masks in rows [..., R] allow: bool [..., A]."""
    numbers: Tensor = spec.mask_in(rows).to(torch.uint8).unsqueeze(-1)
    bits = 2 ** torch.arange(8, dtype=torch.uint8, device=rows.device)
    return ((numbers & bits) != 0).flatten(-2)[..., : spec.mask_size]


def to_rows(observation: Tensor, allowed: Tensor) -> Tensor:
    """Returns rows [N, R] of observations [N, *O] and masks bool [N, A], what `allowed_actions` reads."""
    flags = torch.nn.functional.pad(allowed.long(), (0, -allowed.shape[-1] % 8))
    numbers = (flags.reshape(*flags.shape[:-1], -1, 8) * 2 ** torch.arange(8, device=allowed.device)).sum(-1)
    return torch.cat([observation.reshape(observation.shape[0], -1), numbers.to(observation.dtype)], -1)


def disallow(scores: Tensor, allowed: Tensor) -> Tensor:
    """Returns logits or values [..., A] with `DISALLOWED` for what is not allowed."""
    return scores.masked_fill(~allowed, DISALLOWED)


def nth_allowed(allowed: Tensor, n: Tensor) -> Tensor:
    """Returns the n-th [...] of the allowed actions, counted from 0, of allowed bool [..., A]."""
    return (cumulative_sum(allowed.long()) <= n.unsqueeze(-1)).sum(-1)


def sample_possible(p: Tensor, noise: Tensor) -> Tensor:
    """Returns the actions whose intervals of the cumulative distribution contain the noise, never one of p = 0.

    p [..., A], noise [...] in [0, 1]. Rounding may leave the cumulative sum below the noise, and on a GPU also change
    it where p = 0."""
    is_possible = p > 0
    number = ((cumulative_sum(p) <= noise.unsqueeze(-1)) & is_possible).sum(-1)
    return nth_allowed(is_possible, torch.minimum(number, is_possible.sum(-1) - 1))
