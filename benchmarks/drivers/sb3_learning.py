"""Trains Stable-Baselines3 on an Atari game with the settings of RL Baselines3 Zoo (hyperparams/{a2c,ppo,dqn}.yml).

Writes what `benchmarks/scores.py` keeps of a run as JSON: every 10,000 agent steps the steps, the minutes since the
beginning, and the mean raw score of the last 100 games. Schedules run over the zoo's 10 million steps, however many
are made. It uses its own AtariWrapper: 84x84, 4 frames, a lost life ends the episode, rewards clipped, no sticky
actions; environments are stepped one after the other, as the zoo does.
"""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecFrameStack

SCHEDULE_STEPS = 10_000_000
EVERY = 10_000  # agent steps between two points of the curve


def falling(value: float) -> Callable[[float], float]:
    """Returns a schedule that falls linearly to 0."""
    return lambda remaining: remaining * value


# As in the zoo on 2026-11-23; DQN's replay takes 5.6 GB, each of two frames' stacks.
ZOO: dict[str, dict[str, Any]] = {
    "ppo": {
        "envs": 8,
        "n_steps": 128,
        "n_epochs": 4,
        "batch_size": 256,
        "learning_rate": falling(2.5e-4),
        "clip_range": falling(0.1),
        "vf_coef": 0.5,
        "ent_coef": 0.01,
    },
    "a2c": {
        "envs": 16,
        "ent_coef": 0.01,
        "vf_coef": 0.25,
        "policy_kwargs": {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}},
    },
    "dqn": {
        "envs": 1,
        "buffer_size": 100_000,
        "learning_rate": 1e-4,
        "batch_size": 32,
        "learning_starts": 100_000,
        "target_update_interval": 1000,
        "train_freq": 4,
        "gradient_steps": 1,
        "exploration_fraction": 0.1,
        "exploration_final_eps": 0.01,
        "optimize_memory_usage": False,
    },
}


class Curve(BaseCallback):
    """Notes the score, and stops after `steps` or `minutes`."""

    def __init__(self, steps: int, minutes: float):
        super().__init__()
        self.steps, self.minutes, self.start = steps, minutes, time.monotonic()
        self.points: list[list[float]] = []

    def _on_step(self) -> bool:
        steps, minutes = self.num_timesteps, (time.monotonic() - self.start) / 60
        if steps // EVERY > (self.points[-1][0] // EVERY if self.points else 0):
            scores = [game["r"] for game in self.model.ep_info_buffer]
            if scores:
                self.points.append([steps, round(minutes, 3), round(float(np.mean(scores)), 3)])
                print(*self.points[-1], flush=True)
        return steps < self.steps and minutes < self.minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=ZOO, required=True)
    parser.add_argument("--game", required=True, help="as in Pong")
    parser.add_argument("--steps", type=int, help=f"agent steps after which it stops ({SCHEDULE_STEPS:,})")
    parser.add_argument("--minutes", type=float, help="minutes after which it stops")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, help="PyTorch's threads (its own choice)")
    parser.add_argument("--out", type=Path, help="JSON file (sb3_<algo>_<game>_s<seed>.json)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    gymnasium.register_envs(ale_py)
    settings = dict(ZOO[options.algo])
    envs = make_atari_env(f"{options.game}NoFrameskip-v4", settings.pop("envs"), seed=options.seed)
    algo = getattr(stable_baselines3, options.algo.upper())
    model = algo("CnnPolicy", VecFrameStack(envs, 4), seed=options.seed, device="cpu", **settings)
    curve = Curve(options.steps or SCHEDULE_STEPS, options.minutes or math.inf)
    model.learn(SCHEDULE_STEPS, curve)
    given = {name: value for name, value in vars(options).items() if value is not None and name != "out"}
    game, setting = re.sub("(?<!^)(?=[A-Z])", "_", options.game).lower(), f"sb3_{options.algo}"
    about = {
        "game": game,
        "setting": setting,
        "program": f"stable-baselines3 {stable_baselines3.__version__}",
        "command": " ".join([f"python {sys.argv[0]}", *(f"--{name} {value}" for name, value in given.items())]),
        "runs": [{"seed": options.seed, "curve": curve.points, "final": None}],
    }
    out = options.out or Path(f"{setting}_{game}_s{options.seed}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
