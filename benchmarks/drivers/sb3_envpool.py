"""EnvPool's Atari games as environments of Stable-Baselines3, with the rules of its AtariWrapper."""

from collections.abc import Sequence
from typing import Any

import envpool
import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn


class EnvPoolEnvs(VecEnv):
    """Environments that EnvPool's threads step together.

    The other rules are EnvPool's defaults: 84x84, four frames, a frame skip of four, up to 30 no-ops."""

    def __init__(self, game: str, num_envs: int):
        rules = {"episodic_life": True, "reward_clip": True}
        self._pool: Any = envpool.make(f"{game}-v5", env_type="gymnasium", num_envs=num_envs, seed=0, **rules)
        super().__init__(num_envs, self._pool.observation_space, self._pool.action_space)

    def reset(self) -> Any:
        return self._pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Steps all environments. Those whose episode ends step again, which begins EnvPool's next episode.

        EnvPool's `reset` would start a new game, even after a lost life."""
        observations, rewards, terminated, truncated, _ = self._pool.step(self._actions)
        (ended,) = np.nonzero(terminated | truncated)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for env in ended:
            is_cut = bool(truncated[env] and not terminated[env])
            infos[env] = {"terminal_observation": observations[env].copy(), "TimeLimit.truncated": is_cut}
        if ended.size:
            observations[ended] = self._pool.step(self._actions[ended], ended)[0]
        return observations, rewards, terminated | truncated, infos

    def close(self) -> None:
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self._pool, attr_name, None)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Sequence[Any]:
        raise NotImplementedError(method_name)
