"""Batches of a rollout: all of it, or minibatches of samples or, for a recurrent policy, of whole sequences."""

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from accel_rl.rollout import Batch, Rollout
from accel_rl.updates.trees import map_leaves

Targets = TypeVar("Targets", bound=tuple[Tensor, ...])
"""A NamedTuple of tensors [T, B], one entry for each step of the rollout."""


def whole_batch(rollout: Rollout, targets: Targets) -> tuple[Batch, Targets]:
    """Returns all steps with their targets: samples [T x B, ...], or sequences [T, B, ...] for a recurrent policy."""
    if rollout.recurrent_inputs is not None:
        return rollout.sequences(), targets
    return rollout.samples(), map_leaves(lambda target: target.flatten(0, 1), targets)


def minibatches(rollout: Rollout, targets: Targets, order: Tensor, count: int) -> Iterator[tuple[Batch, Targets]]:
    """Yields one pass over the rollout in the given order, in `count` equal parts.

    order: a permutation as `random_orders` makes it. Yields samples [N, ...] from anywhere in the rollout, for a
    recurrent policy whole sequences [T, b, ...], each with their targets.
    """
    for chosen in order.chunk(count):
        if rollout.recurrent_inputs is not None:
            yield rollout.sequences(chosen), map_leaves(lambda target, envs=chosen: target[:, envs], targets)  # type: ignore[misc]
        else:
            steps, envs = chosen // rollout.num_envs, chosen % rollout.num_envs
            part = map_leaves(lambda target, steps=steps, envs=envs: target[steps, envs], targets)  # type: ignore[misc]
            yield rollout.samples_at(steps, envs), part


def random_orders(rollout: Rollout, num_epochs: int) -> Tensor:
    """Returns a permutation for each epoch [epochs, N]: of the T x B samples, or of the B sequences.

    All go to a GPU at once, without waiting for it."""
    num_items = rollout.num_envs if rollout.recurrent_inputs is not None else rollout.reward.numel()
    orders = torch.stack([torch.randperm(num_items) for _ in range(num_epochs)])  # by the CPU's generator everywhere
    device = rollout.reward.device
    return orders.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else orders
