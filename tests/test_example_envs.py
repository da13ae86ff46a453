"""Tests of the environments in docs/examples, which are trained, filmed and resumed as by users."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.cli import main
from docs.examples import cartpole_torch
from tests.helpers.runs import TINY, assert_resumes_exactly

CARTPOLE, CATCH = "docs.examples.cartpole_torch:make", "docs.examples.catch_jax:make"
TINY_DEVICE_RUN: dict[str, Any] = {**TINY, "device": "cpu", "env": CARTPOLE, "algo": "a2c", "seed": 3}


def test_cartpole_is_gymnasiums() -> None:
    """The example CartPole has gymnasium's dynamics, ends and time limit."""
    env, single = cartpole_torch.make(3, "cpu"), gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    rng, num_ends = np.random.default_rng(0), 0
    single.reset(seed=1)
    single.state = env.state[:, 1].tolist()  # type: ignore[attr-defined]
    for _ in range(300):
        actions = rng.integers(2, size=3)
        observation, reward, terminated, truncated, info = env.step(torch.as_tensor(actions))
        expected, expected_reward, expected_end, *_ = single.step(actions[1])
        np.testing.assert_allclose(info["final_obs"][1], expected, rtol=1e-4, atol=1e-5)
        assert (reward[1], terminated[1], truncated[1]) == (expected_reward, expected_end, False)
        if expected_end:
            num_ends += 1
            assert (observation[1].abs() <= 0.05).all() and not env.steps[1]
            single.reset(seed=1)
            single.state = env.state[:, 1].tolist()  # type: ignore[attr-defined]
    assert num_ends > 5
    env.state[:] = 0
    env.steps[:] = torch.tensor([498, 499, 10])
    *_, terminated, truncated, _ = env.step(torch.tensor([0, 1, 0]))
    assert not terminated.any() and truncated.tolist() == [False, True, False]


def test_a_resumed_run_is_the_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run of a batched environment equals a whole one, and its policy can be evaluated and filmed."""
    settings = {**TINY_DEVICE_RUN, "eval_interval_steps": 100, "eval_episodes": 4}
    _, whole = assert_resumes_exactly(tmp_path, settings, 300, stop=100)
    capsys.readouterr()
    assert main(["eval", str(whole), "--episodes", "6", "--trust"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 6
    assert main(["record", str(whole), "--out", str(tmp_path / "game.mp4"), "--trust"]) == 0
    action, _ = accel_rl.load(whole, trust=True).predict(np.zeros((5, 4), np.float32))
    assert action.shape == (5,)


DQN = {"algo": "dqn", "warmup_steps": 40, "batch_size": 8, "replay_size": 200, "target_interval_steps": 60}
VTRACE = {"algo": "vtrace", "batches": 2, "batch_steps": 7, "steps_per_update": 2}  # windows longer than the horizon


slow = pytest.mark.slow


@pytest.mark.gpu
def test_vtrace_trains_on_a_batch(tmp_path: Path) -> None:
    run = accel_rl.train(**TINY_DEVICE_RUN | VTRACE | {"device": "cuda:0"}, steps=120, out=tmp_path / "run")
    assert (run / "policy.safetensors").exists()


@slow
def test_catch_is_learned(tmp_path: Path) -> None:
    """PPO learns an example environment."""
    pytest.importorskip("jax")
    settings = {
        "algo": "ppo",
        "env": CATCH,
        "envs": 64,
        "device": "cpu",
        "eval_interval_steps": 0,
        "tensorboard": False,
    }
    run = accel_rl.train(**settings, steps=100_000, seed=1, out=tmp_path / "run")
    assert json.loads((run / "summary.json").read_text())["ep_rew_mean"] >= 0.8
