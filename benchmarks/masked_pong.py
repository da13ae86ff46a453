"""Pong with a mask that allows every action, for the comparison of action_masks.py."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from accel_rl.envs import make_env


def pong() -> gymnasium.Env[Any, Any]:
    """Makes Pong as an environment of gymnasium, which has no masks."""
    return make_env("pong")


class AllowAll(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Allows every action, by sb3-contrib's method."""

    def action_masks(self) -> NDArray[np.bool_]:
        return np.ones(self.action_space.n, np.bool_)  # type: ignore[attr-defined]
