"""The whole, on tasks small enough to be learned while one waits."""

import csv
import json
import subprocess
import sys
from pathlib import Path


def train(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "accel_rl", "train", "--out", str(folder), "--no-tensorboard", *arguments]
    subprocess.run([*command, "--eval-interval-steps", "0"], check=True, timeout=300)


def test_a2c_learns_cartpole(tmp_path: Path) -> None:
    """Would catch whatever keeps A2C from learning: a wrong sign, a lost sample, a return across episodes."""
    train(tmp_path / "run", "--env", "CartPole-v1", "--steps", "200000", "--seed", "1")
    command = [sys.executable, "-m", "accel_rl", "eval", str(tmp_path / "run"), "--episodes", "20"]
    score = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert score["episodes"] == 20
    assert score["mean_reward"] >= 450


def test_the_example_of_the_docs_learns_cartpole(tmp_path: Path) -> None:
    """Would catch an example that users copy and that does not work, or a class of theirs that can't be named."""
    arguments = ["--algo", "docs.reinforce:Reinforce", "--normalize", "--learning-rate", "0.005"]
    train(tmp_path / "run", *arguments, "--env", "CartPole-v1", "--steps", "100000", "--seed", "1")
    with (tmp_path / "run" / "progress.csv").open() as file:
        scores = [float(row["rollout/ep_rew_mean"]) for row in csv.DictReader(file) if row["rollout/ep_rew_mean"]]
    assert scores[-1] > 3 * 25 > 2 * scores[0]  # random play lasts some 22 steps
