"""Tests of the true last frames of terminated episodes, in the rollouts of all samplers."""

from typing import Any

import pytest
import torch

from accel_rl.envs import EnvConfig
from accel_rl.rollout import Rollout
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.helpers.samplers import TOYS, assert_equal, closing, copy, make, make_kind

pytestmark = pytest.mark.multiprocess

LENGTHS = [3, -4, 2, -1, 7]
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": LENGTHS})  # observes [game, step]
STACKED = EnvConfig("breakout", options={"frame_shape": (20, 16), "noop_max": 3, "frame_stack": 2})
COLOR = EnvConfig("breakout", options={**STACKED.options, "frame_stack": 1, "color": True})


def assert_right(rollout: Rollout, length_of: Any) -> int:
    """Compares with Counting's observations; returns how many episodes were terminated."""
    frames = rollout.terminal_frames
    assert frames is not None and frames.step.dtype == frames.env.dtype == torch.int64
    step, env = rollout.terminated.nonzero(as_tuple=True)
    assert torch.equal(frames.step, step) and torch.equal(frames.env, env)
    game = rollout.observation_rows[step, env, 0]
    length = torch.tensor([length_of(int(each)) for each in game])
    assert torch.equal(frames.frame, torch.stack([game, length], 1))
    return len(step)


def test_terminated_and_truncated_is_terminated() -> None:
    """An episode that is both terminated and truncated counts as terminated."""
    sampler = make(
        SerialSampler,
        EnvConfig(f"{TOYS}:EndsTwice"),
        SamplerConfig(2, 7, 0, terminal_frames=True),
        decorrelation_steps=2,
    )
    for _ in range(3):
        rollout = sampler.collect()
        assert assert_right(rollout, lambda _: 3.0) >= 2
        assert rollout.terminated[rollout.truncated].all() and not len(rollout.final_step)


class LooksAtRollouts:
    """Plays no games, as only the rollouts matter."""

    def play(self, collect: Any, num_envs: int) -> list[Any]:
        assert all(collect().terminal_frames is None for _ in range(2))
        return []


@pytest.mark.parametrize(
    ("env", "kind"),
    [(COUNTING, "alternating"), (STACKED, "alternating"), (COLOR, "device")],
    ids=lambda each: each if isinstance(each, str) else f"{each.env_id[-8:]}-{each.options.get('frame_stack')}",
)
def test_they_are_the_same_for_every_sampler_and_change_nothing_else(env: EnvConfig, kind: str) -> None:
    """All samplers record the same terminal frames, and the rest of the rollouts stays the same."""
    without, with_frames = (SamplerConfig(2, 30, 1, window=3, terminal_frames=each) for each in (False, True))
    samplers = [
        make_kind("serial", env, without),
        make_kind("serial", env, with_frames),
        make_kind(kind, env, with_frames),
    ]
    num_terminated = 0

    def collect(sampler: Any) -> Rollout:
        def on_step(t: int) -> None:
            assert sampler.recent(t, 3, slice(0, 2)).terminal_frames is None

        return copy(sampler.collect(StepHook(on_step)))  # type: ignore[no-any-return]

    with closing(*samplers):
        for index in range(4):
            plain, serial, other = map(collect, samplers)
            assert_equal(serial, other, f"rollout {index}")
            assert plain.terminal_frames is None
            assert serial.terminal_frames is not None
            num_terminated += len(serial.terminal_frames.step)
            if env is COUNTING:
                assert_right(serial, lambda game: float(abs(LENGTHS[game % 5])))
            serial.terminal_frames = None
            assert_equal(plain, serial, f"rollout {index}")
            if index == 1:
                for sampler in samplers[1:]:
                    if env is COUNTING:  # building games costs time
                        sampler.evaluate(LooksAtRollouts(), 0, False)
                    assert sampler.set_state(samplers[0].get_state()) == []
        assert num_terminated >= 4
