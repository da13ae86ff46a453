"""Batches of a rollout: all of it, or minibatches of samples or, for a recurrent policy, of whole sequences."""

from typing import TypeVar

import torch
from torch import Tensor

from accel_rl.errors import UsageError
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates.trees import map_leaves

Targets = TypeVar("Targets", bound=tuple[Tensor, ...])
"""A NamedTuple of tensors [T, B], one entry for each step of the rollout."""


def check_minibatches(count: int, num_envs: int, horizon: int, is_recurrent: bool) -> None:
    """Raises UsageError unless a learner's rollouts divide into that many minibatches: their samples, or for a
    recurrent policy their sequences."""
    if is_recurrent and num_envs % count:
        raise UsageError(
            f"a learner's envs={num_envs} sequences do not divide into minibatches={count}; change one of them"
        )
    if num_envs * horizon % count:
        raise UsageError(
            f"a learner's envs={num_envs} x horizon={horizon} = {num_envs * horizon} samples do not divide into "
            f"minibatches={count}; change one of them"
        )


def whole_batch(rollout: Rollout, targets: Targets) -> tuple[Batch, Targets]:
    """Returns all steps with their targets: samples [T x B, ...], or sequences [T, B, ...] for a recurrent policy."""
    if rollout.recurrent_inputs is not None:
        return rollout.sequences(), targets
    return rollout.samples(), map_leaves(lambda target: target.flatten(0, 1), targets)


def minibatch(rollout: Rollout, targets: Targets, chosen: Tensor) -> tuple[Batch, Targets]:
    """Returns a part of the rollout with its targets: samples [N, ...] from anywhere in it, for a recurrent policy
    whole sequences [T, b, ...].

    chosen [N]: numbers of samples, for a recurrent policy of environments [b]: a part of an order that `random_orders`
    has made.
    """
    if rollout.recurrent_inputs is not None:
        return rollout.sequences(chosen), map_leaves(lambda target: target[:, chosen], targets)
    steps, envs = chosen // rollout.num_envs, chosen % rollout.num_envs
    return rollout.samples_at(steps, envs), map_leaves(lambda target: target[steps, envs], targets)


def random_orders(rollout: Rollout, num_epochs: int) -> Tensor:
    """Returns a permutation for each epoch [epochs, N]: of the T x B samples, valid or not, or of the B sequences.

    Padding behind segments is spread evenly, so that all parts of an order hold as many samples. All go to a GPU at
    once, without waiting for it."""
    num_items = rollout.num_envs if rollout.recurrent_inputs is not None else rollout.reward.numel()
    orders = torch.stack([torch.randperm(num_items) for _ in range(num_epochs)])  # by the CPU's generator everywhere
    if rollout.num_segments is not None:
        orders = _spread(orders, orders % rollout.num_envs >= rollout.num_segments)
    device = rollout.reward.device
    return orders.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else orders


def _spread(orders: Tensor, is_padding: Tensor) -> Tensor:
    """Returns orders [epochs, N] in which padding stands evenly between the others; both stay in their own order."""
    place = torch.where(is_padding, is_padding.cumsum(1), (~is_padding).cumsum(1)) - 0.5
    count = torch.where(is_padding, is_padding.sum(1, keepdim=True), (~is_padding).sum(1, keepdim=True))
    return orders.gather(1, (place / count).argsort(1))
