"""Defines batches of environments whose arrays lie on a device, and presents a batch of one as a single environment.

docs/environments.md describes such batches. `reset` and `step` are as in gymnasium's vector environments, but with
arrays [num_envs, ...] that support DLPack. This module imports no torch.
"""

import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from accel_rl.envs.spaces.masks import KEY
from accel_rl.envs.spec import Array
from accel_rl.errors import UsageError

FINAL_OBSERVATION = ("final_obs", "final_observation")  # names in gymnasium's infos, the current one first


def is_device_env(env: Any) -> bool:
    """Returns whether env is a batch of environments whose arrays support DLPack and are not NumPy's."""
    if isinstance(env, gymnasium.Env) or not all(hasattr(env, name) for name in ("num_envs", "reset", "step")):
        return False
    try:
        inspect.signature(env.reset).bind(seed=0)
    except TypeError:  # another interface, such as Stable-Baselines3's
        return False
    except ValueError:  # a compiled method has no signature, but may take a seed
        pass
    returned = env.reset(seed=0)
    observation = returned[0] if isinstance(returned, tuple) else returned
    return hasattr(observation, "__dlpack__") and not isinstance(observation, np.ndarray | np.generic)


def spaces_of(env: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Returns the observation and the action space of one environment of a batch."""
    observation, action = (
        getattr(env, f"single_{name}_space", None) or getattr(env, f"{name}_space", None)
        for name in ("observation", "action")
    )
    if not (isinstance(observation, gymnasium.Space) and isinstance(action, gymnasium.Space)):
        raise UsageError(
            f"{type(env).__name__} needs single_observation_space and single_action_space, both spaces of gymnasium"
        )
    return observation, action


def resets_in_next_step(env: Any, env_id: str) -> bool:
    """Returns whether the next step resets an ended environment (NEXT_STEP), rather than the step that ends it
    (SAME_STEP, the default). Raises UsageError if no step resets it."""
    mode = AutoresetMode((getattr(env, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.SAME_STEP))
    if mode is AutoresetMode.DISABLED:
        raise UsageError(
            f"{env_id}: autoreset_mode is DISABLED, but environments on a device must reset by themselves: at the step "
            "that ends an episode (SAME_STEP) or at the next one (NEXT_STEP)"
        )
    return mode is AutoresetMode.NEXT_STEP


def final_observation(info: Any) -> Any:
    """Returns the true last observations of the episodes that a step ended, from its info; None without them."""
    return next((info[name] for name in FINAL_OBSERVATION if name in info), None) if isinstance(info, dict) else None


class OneOfBatch(gymnasium.Env[Any, Any]):
    """A batch of one as a single environment with NumPy arrays, for probing, filming and playing by hand."""

    def __init__(self, env: Any, env_id: str):
        if env.num_envs != 1:
            raise UsageError(
                f"{env_id} was asked for num_envs=1, but returned {env.num_envs} environments; its factory must take "
                "the parameter num_envs and return that many"
            )
        self._env, self._env_id, self.metadata = env, env_id, getattr(env, "metadata", None) or {}
        self.observation_space, self.action_space = spaces_of(env)
        self.render_mode = getattr(env, "render_mode", None)
        self._resets_in_next_step = resets_in_next_step(env, env_id)
        if hasattr(env, "action_masks"):
            self.action_masks = lambda: to_numpy(env.action_masks())[0]
        self._arrays: Any = None  # the library of the environment's arrays

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observation, info = self._env.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        self._arrays = array_library(observation)
        return to_numpy(observation)[0], _first_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        import torch

        batch = torch.as_tensor(np.asarray(action, self.action_space.dtype)[None])
        observation, *results, info = self._env.step(self._arrays.from_dlpack(batch))
        reward, terminated, truncated = (to_numpy(each)[0] for each in results)
        final = None if self._resets_in_next_step else final_observation(info)
        if final is not None and (terminated or truncated):
            observation, info = final, {}
        return to_numpy(observation)[0], reward, bool(terminated), bool(truncated), _first_mask(info)

    def render(self) -> Any:
        if not hasattr(self._env, "render"):
            raise UsageError(f"{self._env_id} cannot be recorded: the batch that it returns has no render() method")
        picture = to_numpy(self._env.render())
        return picture[0] if picture.ndim == 4 else picture

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


def _first_mask(info: Any) -> dict[str, Any]:
    """Returns the only environment's info, reduced to its action mask."""
    return {KEY: to_numpy(info[KEY])[0]} if isinstance(info, dict) and KEY in info else {}


def array_library(array: Any) -> Any:
    """Returns an array's module, which has `from_dlpack` (array API standard); torch if the array names no module."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    import torch

    return torch


def to_numpy(array: Any) -> Array:
    """Converts an array that supports DLPack, or that NumPy can read, to a NumPy array."""
    if not hasattr(array, "__dlpack__") or isinstance(array, np.ndarray):
        return np.asarray(array)
    from torch.utils.dlpack import from_dlpack

    return np.array(from_dlpack(array).cpu().numpy())


def row_views(arrays: dict[str, Any], horizon: int, history: int = 0) -> list[dict[str, Any]]:
    """Returns views of rows 0 to horizon of a rollout's tensors, by name. Make them once: making one costs as much as
    using it. history: rows of observations before row 0."""
    rows = {
        name: (array[history:] if name == "observation" else array).unbind()
        for name, array in arrays.items()
        if name != "restarts"
    }
    return [{name: views[t] for name, views in rows.items() if t < len(views)} for t in range(horizon + 1)]
