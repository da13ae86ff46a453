"""Environments with action masks that raise at an action that is not allowed. Nothing here imports torch."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(0, 10, (2,), np.float64),
    "picture": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "number": spaces.Discrete(7, start=1),
    "small": spaces.Box(0, 1, (3,), np.int8),
    "flags": spaces.Box(0, 1, (3,), np.bool_),
}


class Masked(gymnasium.Env[Any, Any]):
    """Allows some actions of each choice, drawn anew at each step: half of them on average, and at least one.

    sources: where masks are; all but the first of SOURCES among them are wrong. nvec: numbers of actions; one number:
    Discrete, with this start. as_parts: masks are a tuple of arrays, one for each choice. seen: a key of OBSERVATIONS.
    Games are terminated after 6 steps, every second one truncated after 4; then the mask allows nothing, or still
    something (says_last). wrong: the mask, or None for a missing one, at the third step, or at the start of the second
    game (wrong_start).
    """

    def __init__(
        self,
        sources: Sequence[str] = ("info",),
        nvec: Sequence[int] = (9,),
        start: int = 0,
        as_parts: bool = False,
        seen: str = "vector",
        says_last: bool = False,
        wrong_start: bool = False,
        **wrong: Any,
    ):
        self._says_last, self._wrong_start = says_last, wrong_start
        self._sources, self._as_parts, self._wrong = tuple(sources), as_parts, wrong
        self._nvec, self._start = list(nvec), start
        self.action_space: Any = (
            spaces.Discrete(nvec[0], start=start) if len(nvec) == 1 else spaces.MultiDiscrete([*nvec])
        )
        self.observation_space: Any = OBSERVATIONS[seen]
        self._space = OBSERVATIONS[seen]
        if "observation" in sources:
            mask = spaces.Box(0, 1, (sum(nvec),), np.int8)
            self.observation_space = spaces.Dict({"action_mask": mask, "observation": self.observation_space})
        if "method" in sources:
            self.action_masks = lambda: self._shown("method")
        self._game, self._steps = 0, 0
        self.mask: NDArray[np.int8] = np.zeros(sum(nvec), np.int8)

    def _split(self, mask: NDArray[np.int8]) -> list[NDArray[np.int8]]:
        return np.split(mask, np.cumsum(self._nvec)[:-1])

    def _shown(self, source: str) -> Any:
        is_used = source == next(name for name in ("method", "info", "observation") if name in self._sources)
        is_wrong = (self._game, self._steps) == (2, 0) if self._wrong_start else self._steps == 3
        if is_used and is_wrong and "wrong" in self._wrong:
            return self._wrong["wrong"]
        mask = self.mask.copy() if is_used else 1 - self.mask
        return tuple(self._split(mask)) if self._as_parts and source != "observation" else mask

    def _look(self, is_over: bool = False) -> tuple[Any, dict[str, Any]]:
        for part in self._split(self.mask):
            part[:] = self.np_random.random(len(part)) < (0.0 if is_over else 0.5)
            if not is_over:
                part[self.np_random.integers(len(part))] = 1
        number = np.asarray((self._game + self._steps) % 2, self._space.dtype)
        is_number = isinstance(self._space, spaces.Discrete)
        self.seen: Any = 1 + self._steps if is_number else np.broadcast_to(number, self._space.shape or ())
        seen: Any = self.seen
        if "observation" in self._sources:
            seen = {"action_mask": self._shown("observation"), "observation": seen}
        return seen, {"action_mask": self._shown("info")} if "info" in self._sources else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game, self._steps = self._game + 1, 0
        return self._look()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choices = np.ravel(action) - self._start
        if not all(part[choice] for part, choice in zip(self._split(self.mask), choices, strict=True)):
            raise ValueError(f"{action} is not allowed by {self.mask}")
        self._steps += 1
        terminated, truncated = self._steps == 6, self._game % 2 == 0 and self._steps == 4
        observation, info = self._look((terminated or truncated) and not self._says_last)
        return observation, float(choices.sum() % 3), terminated, truncated, info


class MaskedBox(Masked):
    """An environment that has masks although its actions are a Box."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)


class Strict(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises at an action that info's mask does not allow, which Taxi itself does not do."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        self.mask = info["action_mask"]
        return observation, info

    def step(self, action: Any) -> Any:
        if not self.mask[action]:
            raise ValueError(f"{action} is not allowed by {self.mask}")
        result = self.env.step(action)
        self.mask = result[-1]["action_mask"]
        return result


class AllowAll(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Allows every action, by sb3-contrib's method."""

    def action_masks(self) -> NDArray[np.bool_]:
        return np.ones(self.action_space.n, np.bool_)  # type: ignore[attr-defined]
