"""Both simulators of Atari games give rollouts that are equal bit for bit in all arrays."""

import numpy as np
import pytest

from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.games.atari import games
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import RunError
from tests.helpers.simulators import MAKE, rollouts

CASES = {
    "lives": ({}, {"reset_mode": "wait"}),
    "limit": ({"max_episode_steps": 17}, {"terminal_frames": True}),
    "prepared starts": ({"max_episode_steps": 60}, {"reset_mode": "reserve", "terminal_frames": True}),
    "sticky presses": (
        {"max_episode_steps": 70, "repeat_action_probability": 0.25, "episodic_lives": False, "clip_reward": False},
        {},
    ),
    "v5": ({"max_episode_steps": 60, "preset": "v5"}, {"reset_mode": "reserve"}),
    "color": ({"color": True, "frame_stack": 1, "frame_shape": (84, 84)}, {"terminal_frames": True}),
}


def compare(game, preset, options, num_envs=2, horizon=25, count=4, wrong_actions=0, decorrelation_steps=40, **config):
    """Compares the simulators' rollouts; returns the numbers of ended episodes and games, and the largest reward."""
    episodes = ended = most = 0
    configs = [
        BatchConfig(EnvConfig(game, preset, options, kind), seed=3, decorrelation_steps=decorrelation_steps, **config)
        for kind in MAKE
    ]
    both = zip(*(rollouts(each, num_envs, horizon, count, wrong_actions) for each in configs), strict=True)
    for number, (one, other) in enumerate(both):
        for name, array in one.items():
            assert np.array_equal(array, other[name]), (number, name)
        episodes += int(one["terminated"].sum() + one["truncated"].sum())
        ended += int(one["reset"][1:].sum() + (~one["valid"][-1]).sum())
        most = max(most, one["reward"].max())
    return episodes, ended, most


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in ("limit", "v5"))) for case in CASES]
)
def test_in_all_ways_to_reset(case):
    """Both simulators give equal rollouts in every way to reset and to start."""
    options, config = CASES[case]
    options = {"noop_max": 5, **options}
    clips = options.get("clip_reward", True)  # else Space Invaders, where rewards are larger than 1
    game, preset = "breakout" if clips else "space_invaders", options.pop("preset", "stooke")
    episodes, ended, most = compare(game, preset, options, **config)
    assert episodes >= 2 and (ended >= 2 or case in ("lives", "color")) and (most > 1) == (not clips)


def test_actions_that_do_not_exist(caplog):
    """An action that does not exist fails, or replaces only its environment, equally in both simulators."""
    options = {"max_episode_steps": 9, "noop_max": 1}
    compare("breakout", "stooke", options, count=2, wrong_actions=1, restart_on_error=True)
    assert len(caplog.records) == 2 * 4
    for simulator in MAKE:
        config = BatchConfig(EnvConfig("breakout", simulator=simulator), seed=3)
        with pytest.raises(RunError, match=r"environment [01] \(run seed 3, breakout\) failed at action \d+:"):
            list(rollouts(config, wrong_actions=20))


@pytest.mark.slow
@pytest.mark.parametrize("game", games())
def test_every_game(game):
    """Both simulators give equal rollouts in every game."""
    options = {"noop_max": 2, "max_episode_steps": 30}
    compare(game, "stooke", options, count=2, reset_mode="reserve", terminal_frames=True, decorrelation_steps=20)
    compare(game, "v5", {"max_episode_steps": 30}, num_envs=1, horizon=40, count=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "preset", "reset_mode"),
    [("breakout", "dqn84", "wait"), ("seaquest", "stooke", "immediate"), ("qbert", "stooke", "wait")],
)
def test_long(game, preset, reset_mode):
    """Both simulators give equal rollouts over thousands of steps."""
    compare(game, preset, {"repeat_action_probability": 0.1}, 4, horizon=250, count=4, reset_mode=reset_mode)
