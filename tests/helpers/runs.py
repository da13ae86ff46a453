"""Reads the files in a run's folder, and compares runs."""

import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

import accel_rl
from accel_rl.run_folder import checkpoint

TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "envs": 4,
    "horizon": 5,
    "eval_interval_steps": 0,
    "tensorboard": False,
    "report": False,
    "compile": "never",  # no run is long enough to gain; see tests/updates/test_compiled_calls.py
    "sampling_threads": 1,  # the machine may be busy
    "learning_threads": 1,
}
# Settings that tests' runs start from: {**TINY_RUN, "algo": "ppo", "steps": 40}.
TINY_RUN: dict[str, Any] = {**TINY, "device": "cpu", "workers": 2}
TINY_SERIAL_RUN: dict[str, Any] = {**TINY, "device": "cpu", "sampler": "serial"}
TINY_LEARNERS_RUN: dict[str, Any] = {**TINY, "devices": "cpu,cpu", "sampler": "serial"}
# Checkpoints at steps 40, 80, ..., each with its replay.
TINY_DQN_RUN: dict[str, Any] = {**TINY_SERIAL_RUN, "algo": "dqn", "warmup_steps": 40, "batch_size": 8}
TINY_DQN_RUN |= {"replay_size": 100, "training_intensity": 2, "checkpoint_interval_steps": 40, "schedule_steps": 200}


def rows(run: Path) -> list[dict[str, str]]:
    """Returns the rows of progress.csv."""
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def rows_without_time(run: Path) -> list[dict[str, str]]:
    """Returns the rows of progress.csv without measured times."""
    kept = [name for name in rows(run)[0] if not name.startswith("time/") or name == "time/total_timesteps"]
    return [{name: row[name] for name in kept} for row in rows(run)]


def assert_resumes_exactly(folder: Path, settings: dict[str, Any], steps: int, stop: int) -> tuple[Path, Path]:
    """Asserts that a run that ends after `stop` steps and is resumed equals one without interruption; returns both."""
    settings = {"schedule_steps": steps, **settings}
    whole = accel_rl.train(**{**settings, "steps": steps}, out=folder / "whole")
    resumed = accel_rl.train(**{**settings, "steps": stop}, out=folder / "resumed")
    accel_rl.train(resume=resumed, steps=steps)
    assert_same_run(resumed, whole)
    return resumed, whole


def assert_same_run(first: Path, second: Path) -> None:
    """Asserts that settings, rows (but for measured times) and checkpoints are equal."""
    assert rows_without_time(first) == rows_without_time(second)
    assert (first / "config.yaml").read_text() == (second / "config.yaml").read_text()
    states = [checkpoint.load(run / "checkpoint.pt") for run in (first, second)]
    for state in states:
        assert {"policy", "update", "steps", "learners"} <= state.keys()
        for learner in state["learners"]:
            assert {"algo", "sampler", "torch_generator"} <= learner.keys()
        del state["progress"]["seconds"]
    assert_same(states[0], states[1])


def assert_same_policy(first: Path, second: Path, name: str = "best.safetensors") -> None:
    """Asserts that the policy files of this name in two runs' folders hold the same tensors and metadata."""
    contents = []
    for run in (first, second):
        with safe_open(run / name, framework="pt") as file:
            contents.append((file.metadata(), {key: file.get_tensor(key) for key in file.keys()}))  # noqa: SIM118
    assert_same(contents[0], contents[1], name)


def assert_same(first: Any, second: Any, where: str = "state") -> None:
    """Asserts that two states are equal bit for bit, at any depth."""
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for name in first:
            assert_same(first[name], second[name], f"{where}[{name!r}]")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), where
        for index, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same(a, b, f"{where}[{index}]")
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype and torch.equal(first, second), where
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype and np.array_equal(first, second), where
    elif where.endswith("['pickle']"):
        assert_same_env(pickle.loads(first), pickle.loads(second))
    else:
        assert first == second, where


def assert_same_env(first: Any, second: Any) -> None:
    """Compares two CartPole or Counting environments by content, since their pickles may differ."""
    assert type(first.unwrapped) is type(second.unwrapped)
    one, other = (vars(env.unwrapped) for env in (first, second))
    for name in ("state", "game", "steps"):
        assert np.array_equal(one.get(name), other.get(name)), name
    assert first.unwrapped.np_random.bit_generator.state == second.unwrapped.np_random.bit_generator.state
    assert getattr(first, "_elapsed_steps", None) == getattr(second, "_elapsed_steps", None)
