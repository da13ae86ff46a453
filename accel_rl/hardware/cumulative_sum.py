"""Cumulative sums that are the same in every run, on GPUs too."""

import torch
from torch import Tensor


def cumulative_sum(values: Tensor) -> Tensor:
    """Returns cumulative sums along the last axis; on a GPU by doubling, since `cumsum` is not deterministic there."""
    return values.cumsum(-1) if values.device.type == "cpu" else sum_by_doubling(values)


def sum_by_doubling(values: Tensor) -> Tensor:
    distance = 1
    while distance < values.shape[-1]:
        values = torch.cat([values[..., :distance], values[..., distance:] + values[..., :-distance]], -1)
        distance *= 2
    return values
