"""Tests that whole runs on a GPU equal those on the CPU: every algorithm, sampler, replay, update, core and reset
mode."""

from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.run_folder import checkpoint
from tests.helpers.gpu_runs import assert_learned_alike
from tests.helpers.runs import TINY, assert_resumes_exactly, rows
from tests.helpers.samplers import TOYS

COMMON: dict[str, Any] = {
    **TINY,
    "seed": 5,
    "sampler": "serial",
    "learning_rate_schedule": "linear",
    "decorrelation_steps": 3,
    "log_interval_steps": 20,
    "steps": 80,  # four rollouts: graphs are captured in the third
    "schedule_steps": 400,
    "precision": "float32",
}
PONG = {**COMMON, "env": "pong", "frame_shape": (42, 42), "max_episode_steps": 7, "noop_max": 3}
CARTPOLE = {**COMMON, "env": "CartPole-v1", "env_options": {"max_episode_steps": 8}}

PPO = {"algo": "ppo", "epochs": 2, "minibatches": 2}
VTRACE = {"algo": "vtrace", "batches": 2, "batch_steps": 7, "steps_per_update": 2}  # windows longer than the horizon
REPLAY = {"warmup_steps": 20, "batch_size": 8, "replay_size": 100, "training_intensity": 2, "n_step": 2}
REPLAY |= {"target_interval_steps": 60, "epsilon_steps": 200}
RAINBOW = {"algo": "eps_rainbow", **REPLAY, "new_priority": None}
LSTM = {"core": "lstm", "core_size": 8, "previous_inputs": True}
GRU = {"core": "gru", "core_size": 8}
TASKS: dict[str, Any] = {"auxiliary": "pixel_control,value_replay,reward_prediction", "auxiliary_replay_steps": 18}
CLOCK = {**COMMON, **TASKS, "env": f"{TOYS}:Clock", "env_options": {"lengths": [7, -4, 3]}}
CLOCK |= {"network": "tests.helpers.samplers:Flat"}
MASKED = {**COMMON, "env": "tests.helpers.masked_envs:Masked"}
# Lives are lost within the run.
BREAKOUT = {**PONG, **TASKS, "env": "breakout", "frame_skip": 15, "max_episode_steps": 30, "steps": 140}

# For most of these, `make test` already compares GPU and CPU in tests of the parts.
CASES: dict[str, dict[str, Any]] = {
    "a2c": {**PONG, "sampler": "alternating", "workers": 2, "eval_interval_steps": 60, "eval_episodes": 1},
    "ppo": {**CARTPOLE, **PPO, "value_clip": 0.2, "normalize_advantage": "rollout", "target_kl": 0.5}
    | {"normalize_observations": True},
    "vtrace gru": {**CARTPOLE, **VTRACE, **GRU},
    "dqn with a replay on the CPU": {**CARTPOLE, "algo": "dqn", **REPLAY, "prioritized": True, "replay_device": "cpu"},
    "one_step_sarsa": {**CARTPOLE, "algo": "one_step_sarsa", "target_interval_steps": 60},
    "central store": {**CARTPOLE, "update": "central_store"},
    "a2c with tasks": CLOCK,
    "dqn": {**PONG, "algo": "dqn", **REPLAY},
    "a2c without graphs": {**PONG, "cuda_graphs": False},
    "a2c of a Gaussian": {**COMMON, "env": "Pendulum-v1", "gaussian": "spherical", "separate_value": True},
    "vtrace lstm": {**PONG, **VTRACE, **LSTM, "reset_mode": "wait"},
    "pqn": {**PONG, "algo": "pqn", "minibatches": 2, "eval_interval_steps": 80, "eval_episodes": 1},
    "appo": {**CARTPOLE, "algo": "appo", "minibatches": 2, "updates_per_exchange": 2},
    "torch.Adam": {**CARTPOLE, "optimizer": "torch.Adam", "optimizer_options": {}, "log_norms": True},
    "deterministic": {**PONG, **RAINBOW, "deterministic": True},
    "ppo with tasks": {**CLOCK, **PPO, **LSTM, "auxiliary_start": "when_full"},
    "vtrace with tasks on breakout": {**BREAKOUT, **VTRACE, "auxiliary_start": "all_when_full"},
    "ppo with masks": {**MASKED, **PPO, **LSTM, "deterministic": True},
    "a2c bf16": {**PONG, "precision": "bf16"},
}
# 1e-5 by default, or 1e-6 of large numbers: rounding, which RMSProp amplifies. In bfloat16, CPU and GPU round at
# different places.
TOLERANCE = {"a2c bf16": 3e-2}


@pytest.mark.gpu(like_cpu=True)
@pytest.mark.parametrize(
    "case",
    [
        "a2c",
        *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in ("a2c", "a2c bf16")),
        # A real GPU's rounding chooses other actions; `accel-rl doctor --gpu` compares it on recorded rollouts.
        pytest.param("a2c bf16", marks=[pytest.mark.slow, pytest.mark.gpu(like_cpu=True, fake=True)]),
    ],
)
def test_a_run_is_that_of_the_cpu(case: str, tmp_path: Path) -> None:
    """A run on a GPU learns and scores as on the CPU, and reports the GPU's shares of waiting."""
    there = accel_rl.train(**CASES[case], device="cuda:0", out=tmp_path / "there")
    here = accel_rl.train(**CASES[case], device="cpu", out=tmp_path / "here")
    assert_learned_alike(CASES[case], there, here, TOLERANCE.get(case, 1e-5))
    scores = [[row.get("rollout/ep_rew_mean") for row in rows(run)] for run in (here, there)]
    assert scores[0] == scores[1]
    assert len([row for row in rows(there) if row["train/loss"]]) >= 2
    says_who_waited = [
        {"time/gpu_wait_share", "time/gpu_idle_share"} <= rows(run)[0].keys()
        and (run / "log.txt").read_text().count("the server for the GPU") == 1
        for run in (here, there)
    ]
    assert says_who_waited == [False, CASES[case]["sampler"] == "alternating"]


def noisy(spec: Any) -> torch.nn.Module:
    """A trunk with dropout, whose masks a GPU draws by its own generator."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2))


RESUMED: dict[str, dict[str, Any]] = {
    "a2c with dropout": {**CARTPOLE, "network": "tests.training.test_gpu_runs:noisy"},
    "eps_rainbow": {**CARTPOLE, **RAINBOW},
    "vtrace lstm": {**CARTPOLE, **VTRACE, **LSTM},
    "central adam": {**CARTPOLE, "update": "central_store", "optimizer": "adam", "optimizer_options": {}},
    "a2c on pong": {**PONG, "sampler": "alternating", "workers": 2, "core": "gru", "core_size": 8},
    "ppo with tasks": {**CLOCK, **PPO, **LSTM},
    "dqn in bfloat16": {**PONG, "algo": "dqn", **REPLAY, "precision": "bf16"},
}
RESUMED_IN_MAKE_TEST = ("a2c with dropout", "eps_rainbow")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", [name if name in RESUMED_IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.slow) for name in RESUMED]
)
def test_two_halves_equal_a_whole_run_on_a_gpu(case: str, tmp_path: Path) -> None:
    """A resumed run on a GPU equals an uninterrupted one, bit for bit with deterministic operations. Other
    operations of a real GPU add in varying order."""
    settings = {**RESUMED[case], "device": "cuda:0", "deterministic": True}
    assert_resumes_exactly(tmp_path, settings, 120, stop=80)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("first", "second"), [("cpu", "cuda:0"), pytest.param("cuda:0", "cpu", marks=pytest.mark.slow)]
)
def test_a_run_continues_on_another_device(first: str, second: str, tmp_path: Path) -> None:
    run = accel_rl.train(**{**CARTPOLE, **RAINBOW, "steps": 60}, device=first, out=tmp_path / "run")
    accel_rl.train(resume=run, steps=80, device=second)
    state = checkpoint.load(run / "checkpoint.pt")
    assert state["steps"] == 80 and all(value.isfinite().all() for value in state["policy"].values())
