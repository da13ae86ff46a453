"""Tests of the whole framework on tasks that take about half a minute to learn."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from tests.helpers.runs import TINY_SERIAL_RUN
from tests.helpers.samplers import TOYS

pytestmark = pytest.mark.slow  # envs/test_spaces.py has the learning test of `make test`


def train(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "accel_rl", "train", "--out", str(folder), "--no-tensorboard", *arguments]
    subprocess.run([*command, "--eval-interval-steps", "0"], check=True)


def test_ppo_learns_cartpole(tmp_path: Path) -> None:
    """PPO scores 450 on CartPole after 60,000 steps."""
    arguments = ["--algo", "ppo", "--env", "CartPole-v1", "--sampler", "serial", "--seed", "1"]
    train(tmp_path / "run", *arguments, "--steps", "60000")
    command = [sys.executable, "-m", "accel_rl", "eval", str(tmp_path / "run"), "--episodes", "20"]
    evaluation = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert evaluation["episodes"] == 20 and evaluation["mean_reward"] >= 450


def test_the_example_of_the_docs_learns_cartpole(tmp_path: Path) -> None:
    """The documented example of a user's algorithm learns CartPole."""
    arguments = ["--algo", "docs.reinforce:Reinforce", "--normalize", "--learning-rate", "0.005"]
    train(tmp_path / "run", *arguments, "--env", "CartPole-v1", "--steps", "100000", "--seed", "1")
    with (tmp_path / "run" / "progress.csv").open() as file:
        scores = [float(row["rollout/ep_rew_mean"]) for row in csv.DictReader(file) if row["rollout/ep_rew_mean"]]
    assert scores[-1] > 3 * 25 > 2 * scores[0]  # random play lasts about 22 steps


# With these settings, all of 10 seeds solve the task; an LSTM needs 100,000 steps.
RECALL: dict[str, Any] = {**TINY_SERIAL_RUN, "algo": "ppo", "env": f"{TOYS}:Recall", "core": "gru", "core_size": 32}
RECALL |= {"envs": 64, "horizon": 33, "epochs": 4, "minibatches": 2, "gae_lambda": 0.95, "entropy_weight": 0.01}
RECALL |= {"learning_rate": 1e-2, "learning_rate_schedule": "linear", "clip_schedule": "constant"}
RECALL |= {"normalize_advantage": "rollout", "separate_value": False, "decorrelation_steps": 20, "eval_greedy": True}


def test_a_core_remembers(tmp_path: Path) -> None:
    """PPO with a recurrent core scores 0.95 where a policy without memory scores 1/2."""
    run = accel_rl.train(**RECALL, steps=60_000, seed=1, out=tmp_path / "run")
    assert accel_rl.load(run, trust=True).evaluate(20).mean_reward >= 0.95
