"""Tests that a run that was stopped, killed or too short continues as if nothing had happened."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.samplers import SerialSampler
from tests.helpers.processes import Command, as_flags
from tests.helpers.runs import (
    TINY_RUN,
    TINY_SERIAL_RUN,
    assert_resumes_exactly,
    assert_same,
    assert_same_policy,
    assert_same_run,
    rows,
)
from tests.helpers.samplers import TOYS

STEPS = 4000
COMMON: dict[str, Any] = {**TINY_RUN, "seed": 5, "learning_rate_schedule": "linear", "decorrelation_steps": 20}
CARTPOLE = {**COMMON, "env": "CartPole-v1", "log_interval_steps": 100, "eval_interval_steps": 0}
CARTPOLE |= {"schedule_steps": STEPS, "checkpoint_interval_steps": 400}
PONG = {**COMMON, "env": "pong", "log_interval_steps": 40, "eval_interval_steps": 80, "eval_episodes": 2}
PONG |= {"schedule_steps": 240, "frame_shape": (42, 42), "max_episode_steps": 7, "noop_max": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """A run on CartPole without interruption."""
    return accel_rl.train(**CARTPOLE, steps=STEPS, out=tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["native", "ale"])
def test_two_halves_equal_a_whole_run_on_pong(tmp_path: Path, simulator: str) -> None:
    """A resumed run of Pong equals an uninterrupted one, on both simulators."""
    settings = {**PONG, "simulator": simulator, "normalize_observations": True}
    half, whole = assert_resumes_exactly(tmp_path, settings, 240, stop=80)
    assert_same_policy(half, whole)
    assert sum("eval/mean_reward" in row for row in rows(half)) == 6
    assert sum(row["eval/mean_reward"] != "" for row in rows(half)) == 3


SMALL_PPO = {"algo": "ppo", "epochs": 2, "minibatches": 2}
VTRACE = {"algo": "vtrace", "batches": 2, "batch_steps": 7, "steps_per_update": 2}  # windows longer than the horizon
# A replay that is full before the run is stopped, and wraps around after.
REPLAY: dict[str, Any] = {"n_step": 3, "warmup_steps": 40, "batch_size": 8, "replay_size": 100, "training_intensity": 2}
REPLAY |= {"target_interval_steps": 60, "epsilon_steps": 200, "sampler": "serial"}

VARIANTS: dict[str, dict[str, Any]] = {
    "ppo gru normalized": {
        **SMALL_PPO,
        "core": "gru",
        "core_size": 8,
        "previous_inputs": True,
        "normalize_observations": True,
        "normalize_returns": True,
    },
    "vtrace lstm": {**VTRACE, "core": "lstm", "core_size": 8, "reset_mode": "wait"},
    "dqn": {"algo": "dqn", **REPLAY},
    "eps_rainbow": {
        "algo": "eps_rainbow",
        **REPLAY,
        "new_priority": None,
        "normalize_returns": True,
        "warmup_steps": 24,
    },
    "pqn lstm": {"algo": "pqn", "epochs": 2, "minibatches": 2, "core": "lstm", "core_size": 8, "epsilon_steps": 200}
    | {"sampler": "serial"},
    "one_step_sarsa": {"algo": "one_step_sarsa", "target_interval_steps": 60, "sampler": "serial"},
    "a2c of one environment": {"envs": 1, "sampler": "serial", "core": "lstm", "core_size": 8, "reset_mode": "wait"},
    "vtrace normalized": {**VTRACE, "normalize_observations": True, "normalize_returns": True, "sampler": "serial"},
}


IN_MAKE_TEST = ("ppo gru normalized", "dqn", "pqn lstm")  # one with simulator processes, one with a replay


@pytest.mark.parametrize(
    "variant", [name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_two_halves_equal_a_whole_run_of_each_algorithm(tmp_path: Path, variant: str) -> None:
    """A resumed run of each algorithm equals an uninterrupted one, and so does its replay."""
    settings = {**CARTPOLE, **VARIANTS[variant], "schedule_steps": 240, "log_interval_steps": 20}
    half, whole = assert_resumes_exactly(tmp_path, settings, 240, stop=120)
    learned = [float(row["train/loss"]) for row in rows(half) if row["train/loss"]]
    assert len(set(learned)) == len(learned) >= 9
    for replay in (checkpoint.load(run / "checkpoint.pt")["learners"][0]["replay"] for run in (half, whole)):
        assert (replay is not None) == ("replay_size" in settings)
        if replay:
            assert_same(*(checkpoint.load(run / replay) for run in (half, whole)))


@pytest.mark.slow
def test_two_halves_equal_a_whole_run_with_a_replay_of_frames(tmp_path: Path) -> None:
    settings = {**PONG, **REPLAY, "algo": "dqn", "n_step": 3, "eval_interval_steps": 0}
    half, whole = assert_resumes_exactly(tmp_path, settings, 240, stop=80)
    files = [sorted(path.name for path in run.glob("replay-*")) for run in (whole, half)]
    assert files == [["replay-240.pt"], ["replay-240.pt", "replay-80.pt"]]
    first, second = (checkpoint.load(run / "replay-240.pt") for run in (half, whole))
    assert_same(first, second)
    assert first["ring"]["arrays"]["truncated"].any() and first["ring"]["arrays"]["frames"].any()


def test_a_replay_that_the_checkpoint_needs_is_kept_and_missed(tmp_path: Path) -> None:
    """A resume keeps the replays that its checkpoints need, and a missing one is a usage error."""
    settings = {**CARTPOLE, **REPLAY, "algo": "dqn", "checkpoint_interval_steps": 20}
    run = accel_rl.train(**settings, steps=100, out=tmp_path / "run")
    assert sorted(path.name for path in run.glob("replay-*")) == ["replay-100.pt", "replay-80.pt"]
    with pytest.raises(UsageError, match="--replay-size would change the run"):
        accel_rl.train(resume=run, steps=140, replay_size=200)
    accel_rl.train(resume=run, steps=140)
    assert sorted(path.name for path in run.glob("replay-*")) == ["replay-120.pt", "replay-140.pt"]
    os.unlink(run / "replay-140.pt")
    with pytest.raises(UsageError, match=r"checkpoint.pt needs its replay replay-140\.pt, which is missing"):
        accel_rl.train(resume=run, steps=180, show=True)
    assert "console" not in [thread.name for thread in threading.enumerate()]


def test_a_resumed_run_keeps_its_best_policy(tmp_path: Path) -> None:
    settings = {**CARTPOLE, "sampler": "serial", "eval_interval_steps": 20, "eval_episodes": 1}
    run = accel_rl.train(**settings, steps=20, out=tmp_path / "run")
    best = (run / "best.safetensors").read_bytes()
    state = checkpoint.load(run / "checkpoint.pt")
    checkpoint.save(run / "checkpoint.pt", state | {"best_score": 1e9})
    accel_rl.train(resume=run, steps=40)
    assert checkpoint.load(run / "checkpoint.pt")["best_score"] == 1e9
    assert (run / "best.safetensors").read_bytes() == best


@pytest.mark.parametrize("interval", [20, 40])
def test_an_interrupted_evaluation_is_repeated(interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation that signals interrupted twice, even the last one, is repeated after the resume."""
    settings = {**CARTPOLE, "sampler": "serial", "steps": 40, "eval_interval_steps": interval, "eval_episodes": 3}
    whole = accel_rl.train(**settings, out=tmp_path / "whole")
    evaluate = SerialSampler.evaluate

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    monkeypatch.setattr(SerialSampler, "evaluate", interrupted)
    with pytest.raises(SystemExit):
        accel_rl.train(**settings, out=tmp_path / "run")
    with pytest.raises(SystemExit):
        accel_rl.train(resume=tmp_path / "run")
    assert not (tmp_path / "run" / "progress.csv").exists()
    assert (tmp_path / "run" / "log.txt").read_text().count("to continue: ") == 2
    monkeypatch.setattr(SerialSampler, "evaluate", evaluate)
    accel_rl.train(resume=tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["fps"] > 0  # though the last session did no step
    assert [row["eval/mean_reward"] != "" for row in rows(whole)] == [True] * (40 // interval)
    with pytest.raises(UsageError, match="has 40 steps already"):
        accel_rl.train(resume=tmp_path / "run")


def test_a_replay_of_a_users_own_class_is_kept(tmp_path: Path) -> None:
    """A checkpoint holds any replay with a state_dict, and gives it back as it was."""
    run = accel_rl.train(**{**TINY_SERIAL_RUN, "algo": "tests.helpers.toy_algos:Remembering"}, steps=40, out=tmp_path)
    accel_rl.train(resume=run, steps=80)
    first, last = (float(row["train/num_rollouts"]) for row in rows(run))
    assert last == 3 * first - 1  # means over each half: of 1, ..., n and of n + 1, ..., 2 n


@pytest.mark.slow
def test_a_killed_run_continues_from_its_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    """A killed run continues exactly from its last checkpoint, and no row appears twice."""
    run = tmp_path / "run"
    command = Command("train", "--out", run, "--steps", STEPS, *as_flags(CARTPOLE))
    command.wait_for(lambda: (run / "progress.csv").exists() and int(rows(run)[-1]["time/total_timesteps"]) >= 700)
    command.process.kill()
    assert command.finish().status == -signal.SIGKILL
    steps = checkpoint.load(run / "checkpoint.pt")["steps"]
    assert 400 <= steps < STEPS and steps % 400 == 0
    with (run / "progress.csv").open("a") as file:
        file.write("12")  # as if it had died in the middle of a row
    accel_rl.train(resume=run)
    assert_same_run(run, whole)


@pytest.mark.slow
def test_an_environment_without_a_state_starts_a_new_episode(tmp_path: Path) -> None:
    """A resumed run names the environments that have no state and start a new episode."""
    for name in ("Unpicklable", "Deceptive"):
        settings = {**CARTPOLE, "env": f"{TOYS}:{name}", "schedule_steps": None}
        run = accel_rl.train(**settings, steps=100, out=tmp_path / name)
        accel_rl.train(resume=run, steps=200)
        log = (run / "log.txt").read_text()
        assert "these environments have no state to save and start a new episode: [0, 1, 2, 3]" in log
        assert "resumed at step 100" in log
        assert [row["time/total_timesteps"] for row in rows(run)] == ["100", "200"]


def test_the_scores_of_an_earlier_final_policy_are_removed(tmp_path: Path) -> None:
    """A resumed run has no scores of final games until it has played new ones."""
    accel_rl.train(**TINY_SERIAL_RUN, steps=40, out=tmp_path)
    for name in ("final.json", "video.mp4"):
        (tmp_path / name).write_text("{}")
    accel_rl.train(resume=tmp_path, steps=80)
    assert not (tmp_path / "final.json").exists() and not (tmp_path / "video.mp4").exists()


def test_a_run_that_was_killed_before_its_summary(tmp_path: Path) -> None:
    """Resuming a complete run without a summary writes the summary."""
    accel_rl.train(**TINY_SERIAL_RUN, steps=40, out=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").unlink()
    accel_rl.train(resume=tmp_path)
    again = json.loads((tmp_path / "summary.json").read_text())
    assert (again["total_timesteps"], again["ep_rew_mean"]) == (40, summary["ep_rew_mean"])
    with pytest.raises(UsageError, match="has 40 steps already"):
        accel_rl.train(resume=tmp_path)


def test_an_interrupted_overwrite_leaves_no_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted overwrite leaves no checkpoint with the settings of another run."""
    unlink, run = Path.unlink, tmp_path / "run"
    accel_rl.train(**TINY_SERIAL_RUN, steps=40, out=run)
    removed: list[str] = []

    def remove(path: Path, missing_ok: bool = False) -> None:
        if path.exists():
            removed.append(path.name)
            if len(removed) == 2:
                raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", remove)
    while (run / checkpoint.CHECKPOINT).exists():
        removed.clear()
        with pytest.raises(KeyboardInterrupt):
            accel_rl.train(**TINY_SERIAL_RUN, steps=60, out=run, overwrite=True)
        assert (run / "config.yaml").exists()
    monkeypatch.undo()
    accel_rl.train(**TINY_SERIAL_RUN, steps=60, out=run, overwrite=True)
    assert checkpoint.load(run / checkpoint.CHECKPOINT)["steps"] == 60
