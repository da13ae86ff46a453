"""Stable-Baselines3's A2C or PPO in turns; see turns.py.

Its own AtariWrapper (84x84, life loss ends episodes, rewards clipped), 4 frames, CnnPolicy (NatureCNN with 512 units).
What is not given here is as it is by default: so A2C learns with torch's RMSprop, PPO with Adam.
"""

import argparse
import multiprocessing
from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecTransposeImage
from turns import Turns


class TakeTurns(BaseCallback):
    """An iteration begins with a rollout, and ends with what is learned from it."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0

    def count(self, *_: Any) -> None:
        self.updates += 1

    def _on_training_start(self) -> None:
        model = self.model
        model.policy.optimizer.register_step_post_hook(self.count)
        self.turns = Turns(lambda: self.updates)
        self.is_ready = False

    def _on_rollout_start(self) -> None:
        model = self.model
        if self.is_ready:
            self.turns.iterated(model.n_steps * model.n_envs)
            return
        self.is_ready = True
        self.turns.ready(
            peer=f"stable-baselines3 {stable_baselines3.__version__}",
            parameters=sum(parameter.numel() for parameter in model.policy.parameters()),
            optimizer=type(model.policy.optimizer).__name__,
            observation=list(model.observation_space.shape),
            envs=model.n_envs,
            horizon=model.n_steps,
            torch_threads=torch.get_num_threads(),
            vectorization=type(model.env.unwrapped).__name__,
        )

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("a2c", "ppo"), required=True)
    parser.add_argument("--game", required=True, help="as in Pong")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--horizon", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--vectorization", choices=("subproc", "dummy"), default="subproc")
    options = parser.parse_args()
    # Else each of its processes imports torch anew.
    multiprocessing.set_forkserver_preload(["stable_baselines3.common.vec_env.subproc_vec_env", "ale_py"])
    vectorization = {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}[options.vectorization]
    env_id = f"{options.game}NoFrameskip-v4"
    envs = make_atari_env(env_id, options.envs, seed=0, vec_env_cls=vectorization)
    envs = VecTransposeImage(VecFrameStack(envs, 4))
    if options.algo == "a2c":
        model = stable_baselines3.A2C("CnnPolicy", envs, n_steps=options.horizon, seed=0, device="cpu")
    else:
        batch_size = options.envs * options.horizon // options.minibatches
        model = stable_baselines3.PPO(
            "CnnPolicy",
            envs,
            n_steps=options.horizon,
            batch_size=batch_size,
            n_epochs=options.epochs,
            seed=0,
            device="cpu",
        )
    model.learn(10**12, TakeTurns())


if __name__ == "__main__":
    main()
