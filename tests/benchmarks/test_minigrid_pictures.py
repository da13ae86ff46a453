"""MiniGrid's pictures for the comparison of auxiliary tasks."""

import importlib.util

import gymnasium
import numpy as np
import pytest

from accel_rl.envs import make_env
from accel_rl.envs.saved_states import is_exact

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("minigrid"), reason="MiniGrid is not installed")
MAKE = "benchmarks.minigrid_pictures:make"


@pytest.mark.parametrize("task", ["DoorKey-5x5", "MultiRoom-N2-S4", "LavaGapS5"])
def test_the_pictures_are_those_of_minigrid(task: str) -> None:
    """Pictures equal MiniGrid's own, with the agent and what it carries."""
    from minigrid.wrappers import RGBImgPartialObsWrapper  # imported here, since it imports pygame

    env = make_env(MAKE, task=task)
    reference = RGBImgPartialObsWrapper(gymnasium.make(f"minigrid:MiniGrid-{task}-v0"), tile_size=8)
    env.action_space.seed(1)
    picture, expected = env.reset(seed=3)[0], reference.reset(seed=3)[0]["image"]
    for _ in range(150):
        assert picture.shape == (56, 56, 3) and np.array_equal(picture, expected)
        action = env.action_space.sample()
        (picture, *outcome), (observed, *expected_outcome) = env.step(action), reference.step(action)
        expected = observed["image"]
        assert outcome == expected_outcome
        if outcome[1] or outcome[2]:
            picture, expected = env.reset()[0], reference.reset()[0]["image"]


def test_actions_and_states() -> None:
    """The environment has only the chosen actions, and its state can be saved."""
    env = make_env(MAKE, actions=[2, 5])
    assert env.action_space.n == 2
    env.reset(seed=0)
    before = env.unwrapped.agent_dir
    for action in (0, 1, 1, 0):
        env.step(action)
    assert env.unwrapped.agent_dir == before  # it cannot turn
    assert is_exact(lambda: make_env(MAKE), choose=lambda env, *_: env.action_space.sample())
