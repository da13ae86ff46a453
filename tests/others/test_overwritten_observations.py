"""Gymnasium issue 1132: an environment returns the same array from each step and reset, and overwrites it.

Code that keeps the array instead of its numbers sees the next observation, or the next episode's first one, instead.
"""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from accel_rl.envs.spec import EnvConfig
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.samplers import TOYS, closing, make

LENGTHS = (3, -4, -1)  # steps of each game; negative: truncated
T, B = 25, 3
Rows = list[list[float]]


def played(num_steps: int, lengths: Sequence[int], with_resets: bool) -> tuple[Rows, dict[int, list[float]]]:
    """Returns [game, step] of each row of one environment, and the last rows of truncated games by step.

    with_resets: after each game, a step only shows the next game's first observation."""
    rows, last, game, step, is_over = [[0.0, 0.0]], {}, 0, 0, False
    for t in range(num_steps):
        if not is_over:
            step, length = step + 1, lengths[game % len(lengths)]
            is_over = step == abs(length)
            if is_over and length < 0:
                last[t] = [float(game), float(step)]
            starts = is_over and not with_resets
        else:
            starts = True
        if starts:
            game, step, is_over = game + 1, 0, False
        rows.append([float(game), float(step)])
    return rows, last


@pytest.mark.parametrize(
    ("toy", "options", "mode"),
    [
        *[
            ("Overwriting", {"nested": nested}, mode)
            for nested in (False, True)
            for mode in (None, "NextStep", "Disabled")
        ],
        ("Counting", {}, "SameStep"),
    ],
)
def test_every_row_is_the_one_that_was_seen(
    toy: str, options: dict[str, Any], mode: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Every row and every last observation has the numbers of its own step, for single environments and for batches."""
    options = {"lengths": LENGTHS, **options}
    env = EnvConfig(f"{TOYS}:{toy}", options=options)
    if mode:
        env = EnvConfig("tests.helpers.vector_envs:make", options={"toy": toy, "mode": mode, **options})
    sampler = make(SerialSampler, env, SamplerConfig(B, T, 0))
    with closing(sampler):
        rollout = sampler.collect()
    rows, last = played(T, LENGTHS, with_resets=mode == "NextStep")
    assert rollout.observation_rows.tolist() == [[row] * B for row in rows]
    assert rollout.final_step.tolist() == [t for t in last for _ in range(B)]
    assert rollout.final_observation.tolist() == [row for row in last.values() for _ in range(B)]
    assert not caplog.records


@pytest.mark.parametrize("nested", [False, True])
def test_gymnasiums_loss_of_last_observations_is_said_once(nested: bool, caplog: pytest.LogCaptureFixture) -> None:
    """With SAME_STEP, gymnasium's SyncVectorEnv returns the overwritten array as the last observation. This cannot be
    fixed from outside, and a line says so."""
    options = {"toy": "Overwriting", "mode": "SameStep", "lengths": LENGTHS, "nested": nested}
    env = EnvConfig("tests.helpers.vector_envs:make", options=options)
    sampler = make(SerialSampler, env, SamplerConfig(B, T, 0))
    with caplog.at_level(logging.WARNING, "accel_rl"), closing(sampler):
        rollout = sampler.collect()
        assert rollout.observation_rows[:, 0].tolist() == played(T, LENGTHS, with_resets=False)[0]
        assert (rollout.final_observation[:, 1] == 0).all()  # each is the next game's first one
        sampler.collect()
    (record,) = caplog.records
    assert "SAME_STEP" in record.message and "copy" in record.message
