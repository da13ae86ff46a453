"""Deterministic cumulative sums, on GPUs too."""

import torch
from torch import Tensor


def cumulative_sum(values: Tensor) -> Tensor:
    """Returns cumulative sums along the last axis.

    On a GPU floats are summed by doubling, since `cumsum` is not deterministic there. Integers are exact in any order.
    """
    return sum_by_doubling(values) if values.is_cuda and values.is_floating_point() else values.cumsum(-1)


def sum_by_doubling(values: Tensor) -> Tensor:
    distance = 1
    while distance < values.shape[-1]:
        values = torch.cat([values[..., :distance], values[..., distance:] + values[..., :-distance]], -1)
        distance *= 2
    return values
