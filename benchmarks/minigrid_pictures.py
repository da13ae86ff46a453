"""MiniGrid (Chevalier-Boisvert et al. 2023) from pictures: small environments with one reward at the end.

accel-rl train --env benchmarks.minigrid_pictures:make --env-options '{task: DoorKey-5x5, actions: [0, 1, 2, 3, 5]}'

It needs `pip install minigrid`.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.world_object import WorldObj
from numpy.typing import NDArray

TILE = 8  # pixels
CODES = np.array([18, 3, 1])  # combines 11 types of objects, 6 colors and 3 states in one number
NUM_CODES = 11 * 18


def make(
    task: str = "DoorKey-5x5", actions: Sequence[int] = range(7), render_mode: str | None = None
) -> gymnasium.Env[NDArray[np.uint8], np.int64]:
    """Makes MiniGrid-<task>-v0 with pictures as observations.

    actions: the agent's choice of left, right, forward, pick up, drop, toggle and done; most tasks need only some."""
    env = Pictures(gymnasium.make(f"minigrid:MiniGrid-{task}-v0", render_mode=render_mode))
    choices = gymnasium.spaces.Discrete(len(actions))
    return gymnasium.wrappers.TransformAction(env, list(actions).__getitem__, choices)  # can be saved, unlike a lambda


class Pictures(gymnasium.ObservationWrapper[NDArray[np.uint8], int, Any]):
    """A wrapper whose observation is the 7x7 tiles in front of the agent as a picture, uint8 [56, 56, 3].

    The pictures equal those of MiniGrid's RGBImgPartialObsWrapper, but each kind of tile is drawn only once."""

    def __init__(self, env: gymnasium.Env[Any, int]):
        super().__init__(env)
        self._view = self.unwrapped.agent_view_size  # type: ignore[attr-defined]
        self.observation_space = gymnasium.spaces.Box(0, 255, (self._view * TILE, self._view * TILE, 3), np.uint8)
        self._tiles = np.zeros((2 * NUM_CODES, TILE, TILE, 3), np.uint8)  # the second half has the agent on the tile
        self._drawn: set[int] = set()

    def observation(self, observation: dict[str, Any]) -> NDArray[np.uint8]:
        codes = (observation["image"] @ CODES).T  # [rows, columns]
        codes[-1, self._view // 2] += NUM_CODES
        for code in {*codes.flat} - self._drawn:
            self._tiles[code] = _draw(int(code))
            self._drawn.add(code)
        rows: NDArray[np.uint8] = self._tiles[codes].swapaxes(1, 2)
        return rows.reshape(self._view * TILE, self._view * TILE, 3)


def _draw(code: int) -> NDArray[np.uint8]:
    """Draws a tile [TILE, TILE, 3]; tiles that the agent cannot see are darker."""
    with_agent, code = divmod(code, NUM_CODES)
    kind, color, state = code // 18, code // 3 % 6, code % 3
    thing = WorldObj.decode(kind, color, state)
    is_seen = kind > 0
    return np.asarray(Grid.render_tile(thing, 3 if with_agent else None, is_seen, TILE), np.uint8)
