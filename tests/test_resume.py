"""A run that was stopped, killed, or simply too short goes on as if nothing had happened."""

import csv
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl import checkpoint
from tests.helpers.processes import Command
from tests.helpers.samplers import TOYS

STEPS = 4000
COMMON: dict[str, Any] = {
    "device": "cpu",
    "envs": 4,
    "workers": 2,
    "horizon": 5,
    "seed": 5,
    "learning_rate_schedule": "linear",
    "decorrelation_steps": 20,
    "tensorboard": False,
}
CARTPOLE = {**COMMON, "env": "CartPole-v1", "log_interval_steps": 100, "eval_interval_steps": 0}
CARTPOLE |= {"schedule_steps": STEPS, "checkpoint_interval_steps": 400}
PONG = {**COMMON, "env": "pong", "log_interval_steps": 40, "eval_interval_steps": 80, "eval_episodes": 2}
PONG |= {"schedule_steps": 320, "max_episode_steps": 13, "noop_max": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """CartPole from beginning to end."""
    return accel_rl.train(**CARTPOLE, steps=STEPS, out=tmp_path_factory.mktemp("whole") / "run")


def rows(run: Path) -> list[dict[str, str]]:
    """progress.csv without what the clock has written."""
    with (run / "progress.csv").open() as file:
        table = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("time/") or k == "time/total_timesteps"} for row in table]


def assert_same_run(first: Path, second: Path) -> None:
    assert rows(first) == rows(second)
    assert (first / "config.yaml").read_text() == (second / "config.yaml").read_text()
    states = [checkpoint.load(run / "checkpoint.pt") for run in (first, second)]
    for state in states:
        assert {"policy", "update", "algo", "sampler", "steps", "torch_generator"} <= state.keys()
        del state["progress"]["seconds"]
    assert_same(*states)


def assert_same(first: Any, second: Any, where: str = "state") -> None:
    """Bit for bit, all the way down."""
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
    """CartPole: the bytes of two pickles may differ though their contents are the same."""
    assert np.array_equal(first.unwrapped.state, second.unwrapped.state)
    assert first.unwrapped.np_random.bit_generator.state == second.unwrapped.np_random.bit_generator.state
    assert first._elapsed_steps == second._elapsed_steps


def test_two_halves_are_a_whole(whole: Path, tmp_path: Path) -> None:
    """Would catch anything that a checkpoint forgets: a generator, a schedule, an environment, a moving average."""
    run = accel_rl.train(**CARTPOLE, steps=STEPS // 2, out=tmp_path / "run")
    assert checkpoint.load(run / "checkpoint.pt")["steps"] == STEPS // 2
    assert accel_rl.train(resume=run, steps=STEPS) == run
    assert_same_run(run, whole)
    assert len(rows(run)) == STEPS // 100


def test_two_halves_are_a_whole_on_pong(tmp_path: Path) -> None:
    """The same for emulators, stacks of frames, games cut in two, and evaluations."""
    whole = accel_rl.train(**PONG, steps=320, out=tmp_path / "whole")
    half = accel_rl.train(**PONG, steps=160, out=tmp_path / "half")
    accel_rl.train(resume=half, steps=320)
    assert_same_run(half, whole)
    assert_same(*(checkpoint.load(run / "best.pt") for run in (half, whole)))
    assert sum("eval/mean_reward" in row for row in rows(half)) == 8
    assert sum(row["eval/mean_reward"] != "" for row in rows(half)) == 4


def start(out: Path) -> Command:
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in CARTPOLE.items() if name != "tensorboard"]
    return Command(
        "train", "--out", out, "--steps", STEPS, "--no-tensorboard", *(word for flag in flags for word in flag)
    )


def has_row(run: Path, step: int) -> bool:
    return (run / "progress.csv").exists() and int(rows(run)[-1]["time/total_timesteps"]) >= step


def test_a_terminated_run_goes_on(whole: Path, tmp_path: Path) -> None:
    """Would catch a stop in the middle of a log interval that shows in what follows."""
    run = tmp_path / "run"
    command = start(run)
    command.wait_for(lambda: has_row(run, 100))
    command.process.send_signal(signal.SIGTERM)
    assert command.finish(within_s=5).status == 143
    assert 100 <= checkpoint.load(run / "checkpoint.pt")["steps"] < STEPS
    accel_rl.train(resume=run)  # up to the steps that it was created for
    assert_same_run(run, whole)


def test_a_killed_run_goes_on_from_its_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    """Would catch rows that stand twice, or a checkpoint and a log that do not belong together."""
    run = tmp_path / "run"
    command = start(run)
    command.wait_for(lambda: has_row(run, 700))
    command.process.kill()
    assert command.finish(within_s=5).status == -signal.SIGKILL
    steps = checkpoint.load(run / "checkpoint.pt")["steps"]
    assert 400 <= steps < STEPS and steps % 400 == 0
    with (run / "progress.csv").open("a") as file:
        file.write("12")  # as if it had died while it wrote
    accel_rl.train(resume=run)
    assert_same_run(run, whole)


def test_where_there_is_no_state_a_new_episode_starts(tmp_path: Path) -> None:
    """Would catch environments that are resumed wrongly in silence, because they cannot be saved."""
    for name in ("Unpicklable", "Deceptive"):
        settings = {**CARTPOLE, "env": f"{TOYS}:{name}", "schedule_steps": None}
        run = accel_rl.train(**settings, steps=100, out=tmp_path / name)
        accel_rl.train(resume=run, steps=200)
        log = (run / "log.txt").read_text()
        assert "these environments have no state to save and start a new episode: [0, 1, 2, 3]" in log
        assert "resumed at step 100" in log
        assert [row["time/total_timesteps"] for row in rows(run)] == ["100", "200"]


def test_lost_environments_stay_counted(tmp_path: Path) -> None:
    """Would catch a count of losses that starts anew, and with it the seeds of the environments that replace lost ones."""
    options = {"how": "raise", "at_step": 3, "lengths": [0], "once": str(tmp_path / "once")}
    settings = {**CARTPOLE, "env": f"{TOYS}:Broken", "env_options": options, "on_env_error": "restart"}
    settings |= {"decorrelation_steps": 0}
    run = accel_rl.train(**settings, steps=100, out=tmp_path / "run")
    os.unlink(tmp_path / "once")
    accel_rl.train(resume=run, steps=200)
    assert [row["rollout/env_restarts"] for row in rows(run)] == ["1", "1"]
