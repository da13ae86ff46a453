"""Tests of whole runs with auxiliary tasks: resumed, broken, evaluated, recorded, in bfloat16."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel_rl
from accel_rl.cli import main
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY_SERIAL_RUN, assert_resumes_exactly, assert_same, rows
from tests.helpers.samplers import TOYS

slow = pytest.mark.slow

ALL = "pixel_control,value_replay,reward_prediction"
COMMON: dict[str, Any] = {
    **TINY_SERIAL_RUN,
    "seed": 5,
    "learning_rate_schedule": "linear",
    "decorrelation_steps": 5,
    "log_interval_steps": 20,
    "auxiliary": ALL,
    "auxiliary_replay_steps": 18,  # full and overwritten before a run is stopped
    "schedule_steps": 240,
}
CLOCK: dict[str, Any] = {**COMMON, "env": f"{TOYS}:Clock", "network": "tests.helpers.samplers:Flat"}
CLOCK |= {"env_options": {"lengths": [7, -4, 3]}, "normalize_observations": False, "normalize_returns": False}
# With so many frames per step, lives and games end within the run.
BREAKOUT: dict[str, Any] = {**COMMON, "env": "breakout", "frame_shape": (36, 36), "frame_stack": 2, "frame_skip": 9}
LSTM: dict[str, Any] = {"core": "lstm", "core_size": 8, "previous_inputs": True}
PPO: dict[str, Any] = {"algo": "ppo", "epochs": 2, "minibatches": 2}
VTRACE: dict[str, Any] = {"algo": "vtrace", "batches": 2, "batch_steps": 7, "steps_per_update": 2}
LOSSES = [f"train/{name}_loss" for name in ALL.split(",")]


def losses(run: Path, name: str) -> list[float]:
    """Returns a column of the log without its empty cells."""
    return [float(row[name]) for row in rows(run) if row.get(name)]


def saved_replay(run: Path) -> dict[str, Any]:
    (learner,) = checkpoint.load(run / "checkpoint.pt")["learners"]
    return checkpoint.load(run / learner["replay"])


RESUMED: dict[str, dict[str, Any]] = {
    "a2c lstm": {**CLOCK, **LSTM},
    "a2c": {**BREAKOUT, "sampler": "alternating", "workers": 2},
    "ppo": {**BREAKOUT, **PPO, "normalize_returns": True},
    "vtrace": {**BREAKOUT, **VTRACE, "auxiliary_start": "all_when_full"},
}


@pytest.mark.parametrize("case", [name if name == "a2c lstm" else pytest.param(name, marks=slow) for name in RESUMED])
def test_two_halves_equal_a_whole_run(tmp_path: Path, case: str) -> None:
    """A resumed run with auxiliary tasks equals an uninterrupted one, and so does its replay."""
    resumed, whole = assert_resumes_exactly(tmp_path, RESUMED[case], 160, stop=100)
    first = saved_replay(resumed)
    assert_same(first, saved_replay(whole))
    ends = first["ring"]["arrays"]["terminated"]
    assert ends.any() and len(first["ring"]["final_rows"]) >= ends.sum(), "last frames of terminated episodes, too"
    for name in LOSSES:
        assert len(set(losses(resumed, name))) >= 4, name


def test_without_its_replay_a_run_fills_it_anew(tmp_path: Path) -> None:
    """A run resumed without its replay says so, refills it, and then learns its tasks again."""
    settings = {**CLOCK, "auxiliary_start": "when_full", "checkpoint_replay": False}
    run = accel_rl.train(**settings, steps=120, out=tmp_path / "run")
    assert not list(run.glob("replay-*"))
    with pytest.raises(UsageError, match="--auxiliary-replay-steps would change the run; only --steps and where"):
        accel_rl.train(resume=run, steps=240, auxiliary_replay_steps=30)
    accel_rl.train(resume=run, steps=240)
    log = (run / "log.txt").read_text()
    assert "the checkpoint has no replay" in log and "will not be exactly the one that was interrupted" in log
    assert len(losses(run, "train/policy_loss")) == 12
    helped = [row["train/pixel_control_loss"] != "" for row in rows(run)]
    # 18 steps of each environment take four rollouts, and each rollout is a row.
    assert helped == ([False] * 3 + [True] * 3) * 2


@pytest.mark.parametrize(
    "more", [{}, pytest.param({**VTRACE, "reset_mode": "wait"}, marks=slow)], ids=["a2c", "vtrace"]
)
def test_a_run_goes_on_with_a_new_environment(tmp_path: Path, more: dict[str, Any]) -> None:
    """Auxiliary tasks go on learning after an environment is replaced."""
    broken = {"env_options": {"lengths": [7, -4, 9], "at_step": 5, "once": str(tmp_path / "once")}}
    settings = {**CLOCK, **LSTM, **broken, "decorrelation_steps": 0, "on_env_error": "restart", **more}
    run = accel_rl.train(**settings, steps=120, out=tmp_path / "run")
    assert [row["rollout/env_restarts"] for row in rows(run)][-1] == "1"
    for name in LOSSES:
        assert len(set(losses(run, name))) >= 5 and np.isfinite(losses(run, name)).all(), name


def test_a_run_with_heads_is_evaluated_loaded_and_filmed(tmp_path: Path, capfd: Any) -> None:
    settings = {**CLOCK, **LSTM, "eval_interval_steps": 40, "eval_episodes": 2}
    run = accel_rl.train(**settings, steps=40, out=tmp_path / "run")
    assert [row["eval/episodes"] for row in rows(run)][-1] == "2"
    agent = accel_rl.load(run, best=True, trust=True)
    assert {name.split(".")[1] for name in agent.policy.state_dict() if name.startswith("auxiliary_heads.")} == {
        "pixel_control",
        "reward_prediction",
    }
    assert agent.predict(np.zeros((16, 16, 3), np.uint8))[0] in (0, 1)
    assert agent.predict(np.zeros((5, 16, 16, 3), np.uint8))[0].shape == (5,)
    assert main(["eval", str(run), "--trust", "--episodes", "2"]) == 0
    assert '"episodes": 2' in capfd.readouterr().out
    assert main(["record", str(run), "--trust", "--out", str(tmp_path / "game.mp4")]) == 0
    assert (tmp_path / "game.mp4").stat().st_size > 0
