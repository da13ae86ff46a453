"""Crafter (Hafner 2022) as a gymnasium environment: a survival game in a world that is generated anew each time.

accel-rl train --algo ppo --env benchmarks.crafter_env:Crafter

It needs `pip install crafter`, whose own class has the interface of the old gym.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


class Crafter(gymnasium.Env[NDArray[np.uint8], int]):
    """A wrapper of crafter.Env. Observations: pictures uint8 [64, 64, 3]; a new achievement gives a reward of 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None):
        import crafter  # here, so that the class can be imported without the package

        self.render_mode, self._make_game = render_mode, crafter.Env
        self._game = crafter.Env()
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(int(self._game.action_space.n))  # type: ignore[assignment]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._game = self._make_game(seed=seed)
        return self._game.reset(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        picture, reward, is_over, info = self._game.step(action)
        is_dead = info["discount"] == 0
        return picture, float(reward), is_dead, bool(is_over and not is_dead), {}

    def render(self) -> Any:
        return self._game.render((512, 512))
