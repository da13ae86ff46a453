"""Mistakes of other frameworks in the number of updates."""

from pathlib import Path
from typing import Any

import accel_rl
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY_SERIAL_RUN, assert_same_run

SETTINGS: dict[str, Any] = TINY_SERIAL_RUN | {"algo": "ppo", "epochs": 5, "minibatches": 2, "target_kl": 1e-12}
SETTINGS |= {"optimizer": "adam", "normalize_observations": False, "normalize_returns": False}
SETTINGS |= {"schedule_steps": 160, "log_interval_steps": 20}


def num_updates(run: Path) -> float:
    """Returns the number of steps that Adam has made."""
    step: float = checkpoint.load(run / "checkpoint.pt")["update"]["optimizer"]["step"].item()
    return step


def test_updates_are_those_that_were_made(tmp_path: Path) -> None:
    """Stable-Baselines3 issue 1229, sb3-contrib issue 292: epochs that target_kl had skipped were counted all the same.

    Adam's own count, on which its steps depend, is two updates for each rollout of 20 steps, even after a resume."""
    whole = accel_rl.train(**SETTINGS, steps=160, out=tmp_path / "whole")
    half = accel_rl.train(**SETTINGS, steps=80, out=tmp_path / "half")
    assert num_updates(half) == 4 * 2
    accel_rl.train(resume=half, steps=160)
    assert num_updates(half) == 8 * 2
    assert_same_run(half, whole)
