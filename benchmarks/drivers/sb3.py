"""Stable-Baselines3's A2C, PPO or DQN in turns; see turns.py.

It uses its own AtariWrapper (84x84, a lost life ends the episode, rewards clipped) or EnvPool's environments under the
same rules, 4 frames, and CnnPolicy (NatureCNN with 512 units). All else is its default: A2C learns with torch's
RMSprop, PPO with Adam. DQN is the exception: on Atari, it learns with RMSprop, like ours, instead of Adam. A tenth
of its actions is random, and its turns begin when it begins to learn.
"""

import argparse
import functools
import importlib
import multiprocessing
from typing import Any

import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from turns import Turns


class TakeTurns(BaseCallback):
    """Takes turns. An iteration is a rollout of `horizon` steps and learning from it."""

    def __init__(self, horizon: int, warmup_steps: int):
        super().__init__()
        self.horizon, self.warmup_steps = horizon, warmup_steps
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
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            self.turns.iterated(self.horizon * model.n_envs)
            return
        if model.num_timesteps < self.warmup_steps:
            return
        self.is_ready = True
        self.turns.ready(
            peer=f"stable-baselines3 {stable_baselines3.__version__}",
            parameters=sum(parameter.numel() for parameter in getattr(model, "q_net", model.policy).parameters()),
            optimizer=type(model.policy.optimizer).__name__,
            observation=list(model.observation_space.shape),
            envs=model.n_envs,
            horizon=self.horizon,
            device=str(model.device),
            torch_threads=torch.get_num_threads(),
            vectorization=type(model.env.unwrapped).__name__,
        )

    def _on_step(self) -> bool:
        return True


def make_envs(game: str, num_envs: int, vectorization: str) -> VecEnv:
    """Returns the environments, with observations of four frames [4, 84, 84]."""
    if vectorization == "envpool":
        from sb3_envpool import EnvPoolEnvs  # only this variant needs EnvPool

        return EnvPoolEnvs(game, num_envs)
    # Otherwise, each of its processes would import torch again.
    multiprocessing.set_forkserver_preload(["stable_baselines3.common.vec_env.subproc_vec_env", "ale_py"])
    envs = make_atari_env(f"{game}NoFrameskip-v4", num_envs, seed=0, vec_env_cls=SubprocVecEnv)
    return VecTransposeImage(VecFrameStack(envs, 4))


def make_vector_envs(env: str, num_envs: int, vectorization: str, wrappers: list[str]) -> VecEnv:
    """Returns environments of gymnasium in wrappers, each in its own process, or all in this one."""
    multiprocessing.set_forkserver_preload(["stable_baselines3.common.vec_env.subproc_vec_env", "gymnasium"])
    kind = SubprocVecEnv if vectorization == "subproc" else DummyVecEnv
    wrap = functools.partial(wrapped, wrappers) if wrappers else None
    return make_vec_env(env, num_envs, seed=0, vec_env_cls=kind, wrapper_class=wrap)


def wrapped(wrappers: list[str], env: gymnasium.Env) -> gymnasium.Env:
    """Returns env in wrappers, named as in gymnasium.wrappers:FlattenObservation, the innermost first."""
    for name in wrappers:
        module, attribute = name.split(":")
        env = getattr(importlib.import_module(module), attribute)(env)
    return env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("a2c", "ppo", "dqn"), required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--game", help="Atari game, as in Pong")
    where.add_argument("--env", help="gymnasium environment with vectors, as in CartPole-v1")
    parser.add_argument("--wrappers", type=lambda names: names.split(","), default=[], help="innermost first")
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--horizon", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--training_intensity", type=float, default=8.0, help="how often each sample is used")
    parser.add_argument("--replay_size", type=int, default=20_000)
    parser.add_argument("--warmup_steps", type=int, default=0, help="agent steps before the first update")
    parser.add_argument("--vectorization", choices=("subproc", "dummy", "envpool"), default="subproc")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: its default")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.game:
        envs = make_envs(options.game, options.envs, options.vectorization)
    else:
        envs = make_vector_envs(options.env, options.envs, options.vectorization, options.wrappers)
    settings: dict[str, Any] = {"n_steps": options.horizon}
    if options.algo == "ppo":
        batch_size = options.envs * options.horizon // options.minibatches
        settings |= {"batch_size": batch_size, "n_epochs": options.epochs}
    elif options.algo == "dqn":
        rmsprop = {"optimizer_class": torch.optim.RMSprop, "optimizer_kwargs": {"alpha": 0.95, "eps": 1e-6}}
        settings = {
            "buffer_size": options.replay_size,
            "optimize_memory_usage": False,
            "learning_starts": options.warmup_steps,
            "batch_size": options.batch_size,
            "train_freq": options.horizon,
            "gradient_steps": round(options.training_intensity * options.horizon * options.envs / options.batch_size),
            "target_update_interval": 10_000,
            "exploration_initial_eps": 0.1,
            "exploration_final_eps": 0.1,
        }
        if options.game:
            settings["policy_kwargs"] = rmsprop
    algo = getattr(stable_baselines3, options.algo.upper())
    model = algo("CnnPolicy" if options.game else "MlpPolicy", envs, seed=0, device=options.device, **settings)
    model.learn(10**12, TakeTurns(options.horizon, options.warmup_steps))


if __name__ == "__main__":
    main()
