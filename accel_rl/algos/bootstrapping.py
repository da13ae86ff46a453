"""Values of what follows a rollout, and of what would have followed the episodes that were truncated in it."""

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from accel_rl.rollout import RecurrentInputs, Rollout


class HasValue(Protocol):
    """A policy, or a target network, that knows the value of an observation."""

    def step(
        self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None
    ) -> tuple[Any, Tensor, Tensor | None]:
        """Returns anything, the value [N], and the next recurrent state or None."""


@torch.no_grad()
def add_final_values(policy: HasValue, rollout: Rollout, discount: float) -> Rollout:
    """Returns the rollout with the discounted value of each truncated episode's true last observation in its reward.

    The result has no truncated episodes any more (K = 0), so that all of its shapes are those of every rollout, as a
    CUDA graph needs it. One that is merged from segments has none, and is returned as it is."""
    steps, envs, inputs = rollout.final_step, rollout.final_env, rollout.recurrent_inputs
    if not len(steps):
        return rollout
    if inputs is not None:
        inputs = RecurrentInputs(*(rows[steps + 1, envs] for rows in inputs))
        # The row after a truncated episode belongs to the next game already.
        inputs = inputs._replace(is_first=torch.zeros_like(inputs.is_first))
    reward = rollout.reward.clone()
    reward[steps, envs] += discount * policy.step(rollout.final_observation, inputs)[1]
    return replace(rollout.without_finals(), reward=reward)


@torch.no_grad()
def bootstrap(policy: HasValue, rollout: Rollout, discount: float) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the values of what follows the rollout.

    Returns reward [T, B] as `add_final_values` has it, done [T, B], and the value [B] of the observation after step
    T - 1. Of segments, the rewards hold all values of what follows; each is done at its last step.
    """
    if rollout.bootstrap_value is not None:
        return _bootstrap_segments(rollout, discount * rollout.bootstrap_value)
    T, inputs = rollout.horizon, rollout.recurrent_inputs
    last_inputs = inputs and RecurrentInputs(*(rows[T] for rows in inputs))
    value = policy.step(rollout.observations(T, T + 1)[0], last_inputs)[1]
    return add_final_values(policy, rollout, discount).reward, rollout.done, value


def _bootstrap_segments(rollout: Rollout, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adds the discounted value [B] of what follows each segment to the reward of its last step, unless that is
    terminated; returns what `bootstrap` does."""
    valid = rollout.valid
    is_last = valid & ~torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    gain = following.masked_fill(~is_last | rollout.terminated, 0.0)
    return rollout.reward + gain, rollout.done | is_last, torch.zeros_like(following)
