"""Catch in JAX: written for one game, vectorised by vmap, compiled by jit.

cd docs/examples && accel-rl train --algo ppo --env catch_jax:make --envs 64 --steps 100000

A ball falls through ROWS rows of COLUMNS columns; the paddle in the last row moves left, stays or moves right. The
reward is 1 for a ball that is caught, -1 for one that is not.
"""

from functools import partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ROWS, COLUMNS = 10, 5


class Game(NamedTuple):
    """The state of one game, or of many: each of [B]."""

    key: Array
    row: Array
    ball: Array
    paddle: Array


def start(key: Array) -> Game:
    key, for_ball, for_paddle = jax.random.split(key, 3)
    columns = [jax.random.randint(each, (), 0, COLUMNS) for each in (for_ball, for_paddle)]
    return Game(key, jnp.zeros((), jnp.int32), *columns)


def observe(game: Game) -> Array:
    """Returns the board, flat: 1 where the ball or the paddle is."""
    board = jnp.zeros((ROWS, COLUMNS)).at[game.row, game.ball].set(1.0).at[ROWS - 1, game.paddle].set(1.0)
    return board.flatten()


def step(game: Game, action: Array) -> tuple[Game, Array, Array, Array, Array]:
    """Returns the next state, its observation, the reward, whether it ended, and the true last observation."""
    paddle = jnp.clip(game.paddle + action - 1, 0, COLUMNS - 1)
    moved = game._replace(row=game.row + 1, paddle=paddle)
    ended = moved.row == ROWS - 1
    reward = jnp.where(ended, jnp.where(moved.ball == paddle, 1.0, -1.0), 0.0)
    following = jax.tree.map(partial(jnp.where, ended), start(game.key), moved)
    return following, observe(following), reward, ended, observe(moved)


class Catch:
    """Plays num_envs games at once."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 1, (ROWS * COLUMNS,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(3)
        self._start, self._observe, self._step = (jax.jit(jax.vmap(each)) for each in (start, observe, step))
        self._never = jnp.zeros(num_envs, bool)

    def reset(self, seed: int) -> tuple[Array, dict[str, Any]]:
        self.game = self._start(jax.random.split(jax.random.key(seed), self.num_envs))
        return self._observe(self.game), {}

    def step(self, action: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self.game, observation, reward, ended, last = self._step(self.game, action)
        return observation, reward, ended, self._never, {"final_obs": last}


def make(num_envs: int) -> Catch:
    return Catch(num_envs)
