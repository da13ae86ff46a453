"""Stable-Baselines3's PPO on AtariVectorEnv, through an adapter.

python docs/examples/sb3_atari.py breakout 10000000
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from accel_rl.emulator import AtariVectorEnv  # ale-py's: from ale_py.vector_env import AtariVectorEnv


class AtariVecEnv(VecEnv):
    """Presents an AtariVectorEnv as a VecEnv of Stable-Baselines3; options: AtariVectorEnv's.

    Observations are [stack_num, height, width]: the frames are the channels of the picture, as CnnPolicy takes it."""

    _seeds: list[int | None]

    def __init__(self, game: str, num_envs: int, **options: Any):
        self.env = AtariVectorEnv(game, num_envs, autoreset_mode="SameStep", **options)
        super().__init__(num_envs, self.env.single_observation_space, self.env.single_action_space)

    def reset(self) -> np.ndarray:
        observations, infos = self.env.reset(seed=self._seeds[0])  # VecEnv.seed has chosen seed, seed + 1, ...
        self._reset_seeds()
        self.reset_infos = [{"lives": int(lives)} for lives in infos["lives"]]
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        self.env.send(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, infos = self.env.recv()
        done = terminated | truncated
        rows: list[dict[str, Any]] = [{"lives": int(lives)} for lives in infos["lives"]]
        for row in np.flatnonzero(done):
            rows[row]["terminal_observation"] = infos["final_obs"][row]
            rows[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
        return observations, rewards.astype(np.float32), done, rows

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("all environments are one object, whose attributes are fixed")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("all environments are one object")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


def main(arguments: Sequence[str]) -> None:
    """Trains PPO; arguments: the game and the steps."""
    game, steps = arguments
    env = VecMonitor(AtariVecEnv(game, 8, life_loss_info=True))
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        seed=1,
        verbose=1,
    )
    model.learn(int(steps))
    env.close()


if __name__ == "__main__":
    main(sys.argv[1:])
