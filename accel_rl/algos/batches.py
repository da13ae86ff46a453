"""Makes batches from a rollout and its targets, and computes the values to bootstrap from.

A batch is the whole rollout or a minibatch: of samples, or of whole sequences for a recurrent policy.
"""

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from accel_rl.algos.base import Algo
from accel_rl.errors import UsageError
from accel_rl.rollout import Batch, RecurrentInputs, Rollout
from accel_rl.updates.trees import map_leaves

Targets = TypeVar("Targets", bound=Tensor | tuple[Tensor, ...])
"""A tensor [T, B], or a NamedTuple of such, with one entry for each step of the rollout."""


def check_minibatches(algo: Algo) -> None:
    """Raises UsageError unless a learner's rollouts divide into the algorithm's minibatches of samples, or of sequences
    for a recurrent policy."""
    count, num_envs, horizon = algo.settings.minibatches, algo.local_envs, algo.horizon
    if algo.policy.state_size > 0 and num_envs % count:
        raise UsageError(
            f"a learner's envs={num_envs} sequences do not divide into minibatches={count}; change one of them"
        )
    if num_envs * horizon % count:
        raise UsageError(
            f"a learner's envs={num_envs} x horizon={horizon} = {num_envs * horizon} samples do not divide into "
            f"minibatches={count}; change one of them"
        )


def whole_batch(rollout: Rollout, targets: Targets) -> tuple[Batch, Targets, Tensor]:
    """Returns all steps, as samples [T x B, ...] or, for a recurrent policy, sequences [T, B, ...]; their targets; and
    the number of valid steps."""
    if rollout.recurrent_inputs is not None:
        whole = rollout.sequences()
    else:
        whole, targets = rollout.samples(), map_leaves(lambda target: target.flatten(0, 1), targets)
    return whole, targets, whole.valid.sum()


def indexable(rollout: Rollout, targets: Targets) -> tuple[Rollout | Batch, Targets]:
    """Returns the arguments for `minibatch`: all steps as samples, which are faster to index; or the rollout and its
    targets, if it stores each frame only once or belongs to a recurrent policy."""
    is_flat = not rollout.frame_stack and rollout.recurrent_inputs is None
    return whole_batch(rollout, targets)[:2] if is_flat else (rollout, targets)


def minibatch(source: Rollout | Batch, targets: Targets, chosen: Tensor) -> tuple[Batch, Targets, Tensor]:
    """Returns a part of a rollout: samples [N, ...], or whole sequences [T, b, ...] for a recurrent policy; their
    targets; and the number of valid steps.

    source: a rollout with targets [T, B], or its samples [T x B, ...] with targets [T x B], see `indexable`.
    chosen [N]: indices of samples, or of environments [b] for a recurrent policy; a part of an order from
    `random_orders`.
    """
    if isinstance(source, Batch):
        batch, targets = map_leaves(lambda rows: rows.index_select(0, chosen), (source, targets))
    elif source.recurrent_inputs is not None:
        batch, targets = source.sequences(chosen), map_leaves(lambda target: target[:, chosen], targets)
    else:
        steps, envs = chosen // source.num_envs, chosen % source.num_envs
        batch, targets = source.samples_at(steps, envs), map_leaves(lambda target: target[steps, envs], targets)
    return batch, targets, batch.valid.sum()


def random_orders(rollout: Rollout, num_epochs: int) -> Tensor:
    """Returns a permutation of the T x B samples, valid or not, or of the B sequences, for each epoch [epochs, N].

    Spreads the padding after segments evenly, so that all parts of an order hold equally many samples. Copies all
    orders to a GPU at once, without waiting for it."""
    num_items = rollout.num_envs if rollout.recurrent_inputs is not None else rollout.reward.numel()
    orders = torch.stack([torch.randperm(num_items) for _ in range(num_epochs)])  # always from the CPU's generator
    if rollout.num_segments is not None:
        orders = _spread(orders, orders % rollout.num_envs >= rollout.num_segments)
    device = rollout.reward.device
    return orders.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else orders


def _spread(orders: Tensor, is_padding: Tensor) -> Tensor:
    """Returns orders [epochs, N] with the padding spread evenly; padding and samples each keep their own order."""
    place = torch.where(is_padding, is_padding.cumsum(1), (~is_padding).cumsum(1)) - 0.5
    count = torch.where(is_padding, is_padding.sum(1, keepdim=True), (~is_padding).sum(1, keepdim=True))
    return orders.gather(1, (place / count).argsort(1))


@torch.no_grad()
def add_final_values(policy: Any, rollout: Rollout, discount: float) -> Rollout:
    """Returns the rollout with the discounted value of each truncated episode's true last observation in its reward.

    The result no longer lists truncated episodes (K = 0), so all rollouts have the same shapes, as CUDA graphs
    require. On a CPU, where padding would cost time, this removes the padding after merged segments.
    policy: its `step` returns the value second, as that of ActorCritic."""
    if rollout.reward.device.type == "cpu":
        rollout = rollout.without_padding()
    steps, envs, inputs = rollout.final_step, rollout.final_env, rollout.recurrent_inputs
    if not len(steps):
        return rollout
    if inputs is not None:
        inputs = RecurrentInputs(*(rows[steps + 1, envs] for rows in inputs))
        # The row after a truncated episode already belongs to the next game.
        inputs = inputs._replace(is_first=torch.zeros_like(inputs.is_first))
    reward = rollout.reward.clone()
    reward[steps, envs] += discount * policy.step(rollout.final_observation, inputs)[1]
    return replace(rollout.without_finals(), reward=reward)


@torch.no_grad()
def bootstrap(policy: Any, rollout: Rollout, discount: float) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the values to bootstrap from at the end of a rollout that `add_final_values` has returned.

    Returns reward [T, B], done [T, B], and the value [B] of the observation after step T - 1. For merged segments, the
    rewards already include these values, and each segment is done at its last step.
    """
    assert not len(rollout.final_step), "add_final_values comes first"
    if rollout.bootstrap_value is not None:
        return _bootstrap_segments(rollout, discount * rollout.bootstrap_value)
    T, inputs = rollout.horizon, rollout.recurrent_inputs
    last_inputs = inputs and RecurrentInputs(*(rows[T] for rows in inputs))
    value = policy.step(rollout.observations(T, T + 1)[0], last_inputs)[1]
    return rollout.reward, rollout.done, value


def _bootstrap_segments(rollout: Rollout, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adds the discounted value [B] after each segment to the reward of its last step, unless that step terminated;
    returns what `bootstrap` does."""
    valid = rollout.valid
    is_last = valid & ~torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    gain = following.masked_fill(~is_last | rollout.terminated, 0.0)
    return rollout.reward + gain, rollout.done | is_last, torch.zeros_like(following)
