"""Learners on GPUs, each in a separate process."""

from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.run_folder import checkpoint
from tests.helpers.gpu_runs import assert_learned_alike
from tests.helpers.runs import TINY, assert_resumes_exactly

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

COMMON: dict[str, Any] = {**TINY, "seed": 5, "sampler": "serial", "decorrelation_steps": 3, "log_interval_steps": 40}
COMMON |= {"schedule_steps": 400, "precision": "float32"}
DQN = {"algo": "dqn", "prioritized": True, "warmup_steps": 40, "batch_size": 8, "replay_size": 100, "n_step": 2}
DQN |= {"training_intensity": 2, "target_interval_steps": 60, "epsilon_steps": 200}


@pytest.mark.gpu(count=2, like_cpu=True)
@pytest.mark.parametrize(
    "settings",
    [
        {"devices": "all", "normalize_returns": True},
        {"devices": "cuda:1", "learners_per_gpu": 2, "algo": "ppo", "minibatches": 2},
    ],
    ids=["a GPU each, by NCCL", "two on one GPU"],
)
def test_learners_on_gpus_are_those_on_cpus(settings: dict[str, Any], tmp_path: Path) -> None:
    there = accel_rl.train(**COMMON, **settings, steps=120, out=tmp_path / "there")
    on_cpus = {**COMMON, **settings, "devices": "cpu,cpu", "learners_per_gpu": 1, "steps": 120}
    here = accel_rl.train(**on_cpus, out=tmp_path / "here")
    assert_learned_alike(on_cpus, there, here, 1e-5)


@pytest.mark.gpu(count=2)
def test_asynchronous_learners_on_gpus_finish(tmp_path: Path) -> None:
    """Asynchronous learners on GPUs reach the last step with finite parameters."""
    run = accel_rl.train(**COMMON, algo="appo", minibatches=2, devices="all", steps=200, out=tmp_path / "run")
    state = checkpoint.load(run / "checkpoint.pt")
    assert state["steps"] >= 200 and all(value.isfinite().all() for value in state["policy"].values())


@pytest.mark.gpu(count=2)
def test_learners_on_gpus_resume_exactly(tmp_path: Path) -> None:
    """A resumed run of learners on GPUs equals an uninterrupted one."""
    assert_resumes_exactly(tmp_path, COMMON | DQN | {"devices": "all", "deterministic": True}, 240, stop=120)
