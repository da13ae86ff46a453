"""Vector environments of toys, which play like the same toys one by one, and ones that break rules."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from accel_rl.envs.make import make_gym_env
from accel_rl.envs.spec import EnvConfig
from tests.helpers import masked_envs, toy_envs


class MasksByMethod(SyncVectorEnv):
    def action_masks(self) -> Any:
        return self.call("action_masks")


def make(num_envs: int, toy: str = "Counting", mode: str = "NextStep", **options: Any) -> SyncVectorEnv:
    """Returns a vector environment of toys. mode: the value of an AutoresetMode."""
    kind = MasksByMethod if "method" in options.get("sources", ()) else SyncVectorEnv
    make_toy = getattr(toy_envs, toy, None) or getattr(masked_envs, toy)
    return kind([lambda: make_toy(**options)] * num_envs, autoreset_mode=AutoresetMode(mode))


def single_envpool(name: str, seed: int | None = None, **options: Any) -> gymnasium.Env[Any, Any]:
    """Returns one of EnvPool's environments by itself."""
    return make_gym_env(EnvConfig(f"envpool:{name}", options=options), seed)


class Faulty(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Breaks the rule that `how` names, from the second step on."""

    def __init__(self, env: SyncVectorEnv, how: str):
        super().__init__(env)
        self._how, self._num_steps = how, 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options and self._how == "ignores_mask":
            observation, info = super().reset()
            return observation, info
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(actions)
        self._num_steps += 1
        if self._num_steps < 2:
            return observation, reward, terminated, truncated, info
        if self._how == "raises":
            raise ValueError("broken on purpose")
        starts = observation[..., 1] == 0
        observation, reward, terminated, truncated, info = {
            "fewer": (observation[:-1], reward, terminated, truncated, info),
            "text": (observation.astype(str), reward, terminated, truncated, info),
            "flat": (observation[..., 0], reward, terminated, truncated, info),
            "nan": (observation * np.nan, reward, terminated, truncated, info),
            "huge": (observation + np.float64(1e300), reward, terminated, truncated, info),
            "reward_huge": (observation, reward - 1e39, terminated, truncated, info),
            "reward_nan": (observation, reward * np.nan, terminated, truncated, info),
            "one_reward": (observation, reward[0], terminated, truncated, info),
            "ends_at_resets": (observation, reward + 5 * starts, terminated | starts, truncated | starts, info),
            "few_flags": (observation, reward, terminated[:1], truncated, info),
        }.get(self._how, (observation, reward, terminated, truncated, info))
        if terminated.any() and self._how == "resets_itself":
            info = {"final_obs": observation.copy()}
        if self._how == "no_final":
            info = {}
        return observation, reward, terminated, truncated, info


def faulty(num_envs: int, how: str, mode: str = "NextStep", lengths: Sequence[int] = (3, -3)) -> Any:
    if how == "one_more":
        return make(num_envs + 1)
    if how == "no_vector":
        return toy_envs.Counting()
    env = Faulty(make(num_envs, mode=mode, lengths=lengths), how)
    if how == "no_mode":
        env.metadata = {}
    return env


class OneSeed(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Counts the steps of games of three steps, which reset within the last one; takes one seed for all environments.

    name: of the last observations in info, which holds those of all environments and no mask."""

    def __init__(self, num_envs: int, name: str = "final_obs"):
        self.num_envs, self._name = num_envs, name
        self.metadata = {"autoreset_mode": "SameStep"}  # as text
        self.single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.spaces.Box(0, 9, (num_envs, 1), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete([2] * num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is None or isinstance(seed, int)
        self._steps = np.zeros((self.num_envs, 1), np.float32)
        return self._steps.copy(), {}

    def step(self, actions: Any) -> Any:
        self._steps += 1
        is_over, info = self._steps[:, 0] == 3, {self._name: self._steps.copy()}
        self._steps[is_over] = 0
        return self._steps.copy(), actions.astype(np.float32), np.zeros_like(is_over), is_over, info
