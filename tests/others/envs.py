"""Environments for the situations in which other frameworks have failed."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit


class Ones(gymnasium.Env[Any, Any]):
    """Observes the step of the episode, from 0; every reward is 1, and no episode ends by itself."""

    observation_space, action_space = spaces.Box(0, 1000, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


def limited(limit: int) -> gymnasium.Env[Any, Any]:
    return TimeLimit(Ones(), limit)


class Resets(gymnasium.Env[Any, Any]):
    """Observes how many of its resets so far came with a seed, with options, and with neither. lengths: of episodes."""

    observation_space, action_space = spaces.Box(0, 1000, (3,), np.float32), spaces.Discrete(2)

    def __init__(self, lengths: Sequence[int] = (2, 3)):
        self._lengths, self._counts = lengths, np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        has_options = bool(options) and "reset_mask" not in options
        self._counts += (seed is not None, has_options, seed is None and not has_options)
        self._steps, self._length = 0, self._lengths[(int(self._counts.sum()) - 1) % len(self._lengths)]
        return self._counts.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._counts.copy(), 0.0, self._steps == self._length, False, {}


class Parts(gymnasium.Env[Any, Any]):
    """Observes a nested Dict with numbers of int64, a Box without axes, an empty one, and a choice; they change with
    each step."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        {
            "counts": spaces.Box(-(2**40), 2**40, (2,), np.int64),
            "inner": spaces.Dict({"choice": spaces.Discrete(3, start=4), "nothing": spaces.Box(-1, 1, (0,))}),
            "level": spaces.Box(-np.inf, np.inf, (), np.float64),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._observe(), 0.0, self._steps == 5, False, {}

    def _observe(self) -> dict[str, Any]:
        inner = {"choice": 4 + self._steps % 3, "nothing": np.zeros(0, np.float32)}
        counts = np.array([self._steps, -1000 * self._steps], np.int64)
        return {"counts": counts, "inner": inner, "level": np.array(self._steps / 4)}


def vector(num_envs: int, of: str, mode: str, **options: Any) -> SyncVectorEnv:
    make = {"limited": limited, "Resets": Resets, "Parts": Parts}[of]
    return SyncVectorEnv([lambda: make(**options)] * num_envs, autoreset_mode=mode)
