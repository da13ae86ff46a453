"""Tiny environments with spaces of all kinds, for fuzz.py. Only a batch on a device imports torch."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "scalar": spaces.Box(0, 1, (), np.float32),
    "bytes": spaces.Box(0, 255, (5,), np.uint8),
    "flags": spaces.Box(0, 1, (3,), np.bool_),
    "integers": spaces.Box(-(2**62), 2**62, (3,), np.int64),
    "half precision": spaces.Box(-1, 1, (3,), np.float16),
    "number": spaces.Discrete(5, start=-2),
    "numbers": spaces.MultiDiscrete([2, 3]),
    "switches": spaces.MultiBinary(4),
    "small picture": spaces.Box(0, 255, (12, 10, 3), np.uint8),
    "picture": spaces.Box(0, 255, (40, 40, 1), np.uint8),
    "channels first": spaces.Box(0, 255, (3, 40, 44), np.uint8),
    "picture of flags": spaces.Box(0, 1, (12, 10, 1), np.bool_),
    "picture of numbers": spaces.Box(0, 1, (36, 36, 1), np.float32),
    "dict": spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(3), "name": spaces.Text(4)}),
    "dict with picture": spaces.Dict({"camera": spaces.Box(0, 255, (16, 16, 3), np.uint8), "arm": spaces.Box(-1, 1)}),
    "tuple": spaces.Tuple([spaces.MultiBinary(2), spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])]),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "from two on": spaces.Discrete(4, start=2),
    "only one": spaces.Discrete(1),
    "box": spaces.Box(-1, 2, (2,), np.float32),
    "scalar box": spaces.Box(-1, 1, (), np.float64),
    "unbounded box": spaces.Box(-np.inf, np.inf, (1, 2), np.float32),
    "multi": spaces.MultiDiscrete([2, 3]),
    "switches": spaces.MultiBinary(3),
    "dict": spaces.Dict({"gear": spaces.Discrete(2), "arm": spaces.Tuple([spaces.Box(-1, 1), spaces.MultiBinary(2)])}),
}
REFUSED: dict[str, spaces.Space[Any]] = {
    "text": spaces.Text(3),
    "graph": spaces.Graph(spaces.Discrete(2), None),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
    "one of": spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    "empty box": spaces.Box(-1, 1, (0,)),
    "empty dict": spaces.Dict({}),
}
"""Spaces in which no algorithm can learn."""


class Chance(gymnasium.Env[Any, Any]):
    """An environment with random observations and rewards. A game terminates or is truncated after `length` steps.

    masked: some actions of Discrete and MultiDiscrete spaces are not allowed."""

    render_mode = "rgb_array"

    def __init__(
        self,
        observations: str = "vector",
        actions: str = "discrete",
        length: int = 4,
        truncates: bool = False,
        masked: bool = False,
    ):
        self.observation_space = (OBSERVATIONS | REFUSED)[observations]
        self.action_space = (ACTIONS | REFUSED)[actions]
        self._length, self._truncates, self._steps = length, truncates, 0
        self._counts: list[int] = []  # numbers of actions of each choice, if there are masks
        if masked and isinstance(self.action_space, spaces.Discrete):
            self._counts = [int(self.action_space.n)]
        elif masked and isinstance(self.action_space, spaces.MultiDiscrete):
            self._counts = self.action_space.nvec.tolist()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        self._steps += 1
        is_over = self._steps >= self._length
        reward = float(self.np_random.normal())
        is_cut = is_over and self._truncates
        return self.observation_space.sample(), reward, is_over and not is_cut, is_cut, self._info()

    def render(self) -> Any:
        return np.full((16, 16, 3), self._steps, np.uint8)

    def _info(self) -> dict[str, Any]:
        if not self._counts:
            return {}
        mask = self.np_random.integers(2, size=sum(self._counts))
        mask[np.cumsum(self._counts) - 1] = 1
        return {"action_mask": mask.astype(np.int8)}


def vector(num_envs: int, **options: Any) -> SyncVectorEnv:
    """Makes a gymnasium vector environment of these environments."""
    return SyncVectorEnv([lambda: Chance(**options)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class OnDevice:
    """A batch of games on a device, in torch, of `length` steps each."""

    def __init__(self, num_envs: int, device: str, length: int = 4, box: bool = False):
        import torch

        self.num_envs, self._length, self._torch = num_envs, length, torch
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float32) if box else spaces.Discrete(3)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._generator, self._device, self._steps = torch.Generator(device), device, 0

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        self._generator.manual_seed(seed)
        self._steps = 0
        return self._draw(3), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._steps += 1
        is_over = self._torch.full((self.num_envs,), self._steps % self._length == 0, device=self._device)
        return self._draw(3), self._draw(1)[:, 0], is_over, self._torch.zeros_like(is_over), {}

    def _draw(self, size: int) -> Any:
        return self._torch.randn(self.num_envs, size, generator=self._generator, device=self._device)
