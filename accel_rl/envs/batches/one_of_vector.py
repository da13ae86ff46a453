"""Presents a vector environment of one as a single environment, for watching it and for using policies in it."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from accel_rl.envs.batches.device_env import FINAL_OBSERVATION
from accel_rl.envs.spaces.conversion import Space, one_of
from accel_rl.errors import RunError, UsageError

VectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]


def is_envpool(envs: VectorEnv) -> bool:
    """Returns whether EnvPool made envs: EnvPool takes seeds at construction, and can reset single environments."""
    return any(base.__module__.startswith("envpool.") for base in type(envs.unwrapped).__mro__)


def autoreset_mode(envs: VectorEnv, env_id: str) -> AutoresetMode:
    """Returns an environment's autoreset mode. EnvPool's counts as DISABLED, since it can reset single environments.

    Raises UsageError if the environment does not declare one."""
    if is_envpool(envs):
        return AutoresetMode.DISABLED
    mode = (envs.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise UsageError(
            f"{env_id}: metadata['autoreset_mode'] of {type(envs).__name__} is {mode!r}; declare one of "
            f"gymnasium.vector.AutoresetMode: {', '.join(mode.name for mode in AutoresetMode)}"
        ) from None


def last_observation(info: dict[str, Any], space: Space, env: int) -> Any:
    """Returns a finished game's true last observation, for environments that reset within the step.

    Raises RunError if info does not have it under any of gymnasium's names."""
    for name in FINAL_OBSERVATION:
        mask = info.get(f"_{name}")
        if name in info and (mask is None or mask[env]):
            return one_of(info[name], space, env)
    raise RunError(
        'a game has ended, but info["final_obs"] does not hold its last observation, as AutoresetMode.SAME_STEP '
        "requires; add it, or declare another metadata['autoreset_mode']"
    )


def overwrites_last(envs: VectorEnv, last: Any, env: int) -> bool:
    """Returns whether a last observation shares memory with the next game's first one. If so, gymnasium's SyncVectorEnv
    has overwritten it by its reset within the step."""
    newest = getattr(envs.unwrapped, "_env_obs", None)
    return newest is not None and _shares_an_array(last, newest[env])


def _shares_an_array(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return isinstance(second, np.ndarray) and np.may_share_memory(first, second)
    if isinstance(first, Mapping):
        return any(_shares_an_array(first[key], second[key]) for key in first)
    return isinstance(first, tuple) and any(map(_shares_an_array, first, second))


class OneOfVector(gymnasium.Env[Any, Any]):
    """A vector environment of one as a single environment. make: makes it with a seed (for EnvPool, once per seed)."""

    def __init__(self, make: Callable[[int], VectorEnv], seed: int):
        self._make, self._seed = make, seed
        self._envs = envs = make(seed)
        self._mode = autoreset_mode(envs, str(envs))
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.metadata, self.render_mode, self.spec = envs.metadata, envs.render_mode, envs.spec
        if hasattr(envs, "action_masks"):
            self.action_masks = lambda: self._envs.action_masks()[0]  # type: ignore[attr-defined]
        self._begun: Any = None  # the next game's first observation and info, if it began within the last step

    def __str__(self) -> str:
        return str(self._envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        begun, self._begun = self._begun, None
        if seed is None and begun is not None:
            return begun  # type: ignore[no-any-return]
        if is_envpool(self._envs):
            if seed is not None and seed != self._seed:
                self._envs, self._seed = self._make(seed), seed
            observation, info = self._envs.reset()
        else:
            observation, info = self._envs.reset(seed=seed, options=options)
        return one_of(observation, self.observation_space, 0), _first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        actions: Any = concatenate(self.action_space, [action], create_empty_array(self.action_space, 1))  # type: ignore[arg-type]
        observations, reward, terminated, truncated, info = self._envs.step(actions)
        observation = one_of(observations, self.observation_space, 0)
        is_over, self._begun = bool(terminated[0] or truncated[0]), None
        if is_over and self._mode is AutoresetMode.SAME_STEP:
            self._begun = observation, _first(info)
            observation = last_observation(info, self.observation_space, 0)
            info = info.get("final_info", {})
        return observation, float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(info)

    def render(self) -> Any:
        frames = self._envs.render()
        return frames if frames is None else frames[0]

    def close(self) -> None:
        self._envs.close()


def _first(info: dict[str, Any]) -> dict[str, Any]:
    """Returns the only environment's entries of a batch's info."""
    arrays = {name: value for name, value in info.items() if isinstance(value, np.ndarray) and len(value)}
    return {name: value[0] for name, value in arrays.items() if not name.startswith("_")}
