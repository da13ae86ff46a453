"""Rollouts that are merged from segments by hand, and the same segments as ordinary rollouts of one environment."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import RecurrentInputs, Rollout
from tests.helpers.random_rollouts import random_rollout


class Segment(NamedTuple):
    """A segment of num_steps steps; ends: "cut" (its episode goes on), "terminated", "truncated", or "both" at once."""

    num_steps: int
    ends: str


HORIZON = 4
ALL_KINDS = (
    Segment(4, "cut"),
    Segment(1, "terminated"),
    Segment(2, "truncated"),
    Segment(4, "terminated"),
    Segment(3, "both"),
    Segment(4, "truncated"),
    Segment(1, "truncated"),
    Segment(2, "cut"),
    Segment(4, "cut"),
)


def merged(
    spec: EnvSpec,
    policy: Any,
    num_columns: int,
    seed: int = 0,
    segments: tuple[Segment, ...] = ALL_KINDS,
    garbage: float | None = 1e6,
    min_age: int = 0,
) -> Rollout:
    """Returns a rollout [HORIZON, num_columns] of these segments and padding, with the policy's bootstrap values.
    garbage: fills the floats of invalid steps; None: leaves them as `alone` needs them."""
    T, C = HORIZON, num_columns
    rollout = random_rollout(spec, policy, T, len(segments), seed)
    junk = random_rollout(spec, policy, T, C - len(segments), seed + 1) if C > len(segments) else None
    nothing = torch.zeros(T, len(segments), dtype=torch.bool)
    rollout.age.clamp_(min=min_age)
    rollout = replace(rollout, terminated=nothing, truncated=nothing.clone(), valid=nothing.clone())
    bootstrap_value = torch.full((C,), garbage or 0.0)
    for column, (num_steps, ends) in enumerate(segments):
        rollout.valid[:num_steps, column] = True
        rollout.terminated[num_steps - 1, column] = ends in ("terminated", "both")
        rollout.truncated[num_steps - 1, column] = ends in ("truncated", "both")
    for column, (_, ends) in enumerate(segments):
        if ends in ("cut", "truncated"):
            bootstrap_value[column] = _following_value(policy, rollout, column)
    if junk:
        junk.age.clamp_(min=min_age)
        rollout = _widened(rollout, junk)
    rollout = replace(
        rollout, bootstrap_value=bootstrap_value, num_segments=len(segments), num_valid=int(rollout.valid.sum())
    )
    if garbage is not None:
        _spoil(rollout, garbage)
    rollout.policy_outputs["version"] = torch.arange(T * C).view(T, C)
    return rollout


def alone(rollout: Rollout, column: int) -> Rollout:
    """Returns one segment as an ordinary sampler's rollout of one environment; rollout: merged without garbage."""
    T = int(rollout.valid[:, column].sum())
    inputs = rollout.recurrent_inputs
    rows = rollout.observation_rows[: T + 1 + max(rollout.frame_stack - 1, 0), column : column + 1]
    is_cut = rollout.truncated[T - 1, column] & ~rollout.terminated[T - 1, column]
    final_step = torch.tensor([T - 1] if is_cut else [], dtype=torch.int64)
    names = ("action", "reward", "terminated", "truncated", "valid")
    whole = replace(
        rollout,
        **{name: getattr(rollout, name)[:T, column : column + 1] for name in names},
        observation_rows=rows,
        age=rollout.age[: T + 1, column : column + 1],
        reset=rollout.reset[: T + 1, column : column + 1],
        policy_outputs={name: value[:T, column : column + 1] for name, value in rollout.policy_outputs.items()},
        recurrent_inputs=inputs and RecurrentInputs(*(each[: T + 1, column : column + 1] for each in inputs)),
        bootstrap_value=None,
        num_segments=None,
        num_valid=None,
        final_step=final_step,
        final_env=torch.zeros_like(final_step),
    )
    return replace(whole, final_observation=whole.observations(T, T + 1)[0][: len(final_step)])


def _following_value(policy: Any, rollout: Rollout, column: int) -> Tensor:
    """Returns the value of the row after a segment; after the end of an episode, it belongs to the same game."""
    T = int(rollout.valid[:, column].sum())
    observation, inputs = rollout.observations(T, T + 1)[0, column : column + 1], rollout.recurrent_inputs
    if inputs is not None:
        inputs = RecurrentInputs(*(each[T, column : column + 1] for each in inputs))
        if rollout.truncated[T - 1, column]:
            inputs = inputs._replace(is_first=torch.zeros(1, dtype=torch.bool))
    with torch.no_grad():
        return policy.step(observation, inputs)[1][0]  # type: ignore[no-any-return]


def _widened(rollout: Rollout, padding: Rollout) -> Rollout:
    """Returns the rollout with those columns appended; none of their steps is valid."""
    padding.valid.zero_()
    first, second = rollout.tensors(), padding.tensors()

    def join(one: Any, other: Any) -> Any:
        if isinstance(one, dict):
            return {name: join(one[name], other[name]) for name in one}
        if isinstance(one, RecurrentInputs):
            return RecurrentInputs(*map(join, one, other))
        return torch.cat([one, other], 1) if isinstance(one, Tensor) and one.dim() > 1 else one

    names = [name for name in first if not name.startswith("final")]
    return replace(rollout, **{name: join(first[name], second[name]) for name in names})


def _spoil(rollout: Rollout, garbage: float) -> None:
    """Fills all floats of invalid steps with garbage, which shows if it is used."""
    invalid = ~rollout.valid
    rollout.reward[invalid] = garbage
    rollout.policy_outputs["value"][invalid] = -garbage
    sign = torch.tensor([1.0, -1.0]).repeat(rollout.policy_outputs["distribution"].shape[-1])
    size = rollout.policy_outputs["distribution"].shape[-1]
    rollout.policy_outputs["distribution"][invalid] = garbage * sign[:size]
    if rollout.observation_rows.is_floating_point():  # the row after a segment is not read, either
        rows = rollout.observation_rows[-(HORIZON + 1) :]
        rows[:-1][invalid] = garbage
        rows[-1] = garbage
