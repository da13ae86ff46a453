"""Tests of workers with Atari games that are killed or hang, and of actions that do not exist, on both simulators."""

import os
import signal
import sys
import time
from typing import Any

import psutil
import pytest

from accel_rl.envs import EnvConfig
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from tests.helpers.samplers import Echo, assert_equal, closing, copy, make
from tests.helpers.simulators import NATIVE_FIRST

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in the way of Linux"),
    pytest.mark.multiprocess,
    pytest.mark.parametrize("simulator", NATIVE_FIRST),
]
CONFIG = SamplerConfig(num_envs=4, horizon=5, num_workers=2)


def pong(simulator: str) -> EnvConfig:
    return EnvConfig("pong", "stooke", {"max_episode_steps": 9, "noop_max": 3, "frame_shape": (16, 16)}, simulator)


@pytest.mark.parametrize("reset_mode", ["immediate", pytest.param("wait", marks=pytest.mark.slow)])
def test_a_killed_worker_is_replaced(simulator: str, reset_mode: str) -> None:
    """A killed worker's games start anew at the next rollout; other games go on, and lost ones do not score."""
    samplers = [
        make(AlternatingSampler, pong(simulator), CONFIG, restart_on_error=True, reset_mode=reset_mode) for _ in "ab"
    ]
    struck, other = samplers
    with closing(*samplers):
        for _ in range(3):
            assert_equal(struck.collect(), other.collect())
        victim = struck.pool.processes[0]
        os.kill(victim.pid, signal.SIGKILL)
        while psutil.Process(victim.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)
        kept = copy(struck.collect()).valid[0]
        assert int(kept.sum()) == 2 and struck.num_restarts == 2
        other.collect()
        for index in range(4):
            rollout, whole = struck.collect(), other.collect()
            for name in ("reward", "terminated", "truncated", "valid", "reset"):
                assert (getattr(rollout, name)[:, kept] == getattr(whole, name)[:, kept]).all(), name
            assert rollout.valid[0].all() and (rollout.reset[0, ~kept].all() or index > 0)
            assert all(game.length == 9 for game in rollout.games)
            assert struck.pool.tokens_left() == 0
        assert [game.length for game in struck.evaluate(GamesToPlay(4), 0, False)] == [9] * 4


def test_actions_that_do_not_exist(simulator: str) -> None:
    """An action that does not exist replaces its environment, in the same steps in both samplers."""
    found: list[list[Any]] = []
    for sampler_class in (SerialSampler, AlternatingSampler):
        sampler = make(sampler_class, pong(simulator), CONFIG, Echo(7), restart_on_error=True, decorrelation_steps=9)
        with closing(sampler):
            found.append([copy(sampler.collect()) for _ in range(8)])
            assert sampler.num_restarts >= 8
    for index, (first, second) in enumerate(zip(*found, strict=True)):
        assert_equal(first, second, f"rollout {index}")
        lost = (first.action == 6) & first.valid
        assert not lost.any()
