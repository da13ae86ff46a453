"""An environment whose observations are a flat Dict, as Stable-Baselines3 takes them."""

from typing import Any

import gymnasium
import numpy as np


class Rooms(gymnasium.Env[Any, Any]):
    """Shows a goal and a picture [H, W, C] and rewards choosing the goal; lasts 5 steps."""

    observation_space = gymnasium.spaces.Dict(
        {"picture": gymnasium.spaces.Box(0, 255, (24, 20, 3), np.uint8), "goal": gymnasium.spaces.Discrete(3, start=2)}
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.goal - 2)
        self.steps += 1
        return self._observe(), reward, False, self.steps == 5, {}

    def _observe(self) -> Any:
        self.goal = int(self.np_random.integers(2, 5))
        return {"picture": np.full((24, 20, 3), 50 * self.goal, np.uint8), "goal": np.int64(self.goal)}
