"""Auxiliary tasks with several learners: sums over all of them, and a central store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY, assert_resumes_exactly, assert_same, rows
from tests.helpers.samplers import TOYS

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

LOSSES = [f"train/{name}_loss" for name in ("pixel_control", "value_replay", "reward_prediction")]
CLOCK: dict[str, Any] = {**TINY, "env": f"{TOYS}:Clock", "env_options": {"lengths": [7, -4, 3]}, "sampler": "serial"}
CLOCK |= {"network": "tests.helpers.samplers:Flat", "decorrelation_steps": 6, "log_interval_steps": 20}
CLOCK |= {"auxiliary": "pixel_control,value_replay,reward_prediction", "auxiliary_replay_steps": 18}
CLOCK |= {"schedule_steps": 400}
TWO = {"devices": "cpu,cpu"}
ALONE = {"device": "cpu"}
SGD: dict[str, Any] = {"optimizer": "sgd", "optimizer_options": {}, "learning_rate": 0.02, "clip_grad_norm": 0.5}


def test_two_halves_of_the_environments_are_the_whole(tmp_path: Path) -> None:
    """Two learners with half of the environments each learn the same, auxiliary tasks included, as one with all."""
    settings = {**CLOCK, **SGD, "algo": "tests.helpers.toy_algos:SameDrawsPPO", "epochs": 2, "minibatches": 1}
    settings["steps"] = 200
    runs = [accel_rl.train(**settings, **each, out=tmp_path / name) for name, each in (("2", TWO), ("1", ALONE))]
    first, second = (checkpoint.load(run / "checkpoint.pt")["policy"] for run in runs)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    for row, other in zip(*map(rows, runs), strict=True):
        for name in (*LOSSES, "train/loss", "train/grad_norm"):
            assert float(row[name]) == pytest.approx(float(other[name]), rel=1e-4, abs=1e-6), name
    assert all(float(row[name]) > 0 for row in rows(runs[0])[2:] for name in LOSSES)


def test_learners_have_their_own_replays_and_resume_exactly(tmp_path: Path) -> None:
    """Each learner draws from a replay of its own, and a resumed run equals an uninterrupted one."""
    settings = {**CLOCK, **TWO, "algo": "ppo", "epochs": 2, "minibatches": 2, "core": "lstm", "core_size": 8}
    half, run = assert_resumes_exactly(tmp_path, settings, 240, stop=120)
    names = ["replay-240.pt", "replay-240-1.pt"]
    replays = [checkpoint.load(run / name) for name in names]
    assert_same(replays, [checkpoint.load(half / name) for name in names])
    for field in ("action", "frames"):
        assert not torch.equal(*(replay["ring"]["arrays"][field] for replay in replays))
    assert not torch.equal(*(replay["generator"] for replay in replays))
    assert [replay["ring"]["size"][0] for replay in replays] == [2, 2]


def test_learners_with_a_central_store(tmp_path: Path) -> None:
    """With a central store, every task's loss is logged and its heads are learned."""
    settings: dict[str, Any] = {**CLOCK, "algo": "appo", "minibatches": 2}
    run = accel_rl.train(**settings, **TWO, steps=300, out=tmp_path / "run")
    table = rows(run)
    for name in LOSSES:
        found = [float(row[name]) for row in table if row[name]]
        assert len(set(found)) >= 2 and np.isfinite(found).all() and max(found) > 0, name
    start = accel_rl.train(**settings, **ALONE, steps=1, learning_rate=1e-12, out=tmp_path / "start")
    before, after = (checkpoint.load(each / "checkpoint.pt")["policy"] for each in (start, run))
    heads = [name for name in after if name.startswith("auxiliary_heads.")]
    assert len(heads) == 8 and all(torch.dist(after[name], before[name]) > 1e-3 for name in heads)
