"""Whole runs of a GPU session: Pong until it is won, and several learners."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accel_rl
from accel_rl.hardware.devices import num_gpus
from gpu.rows import Row, Rows

ROOT = Path(__file__).parents[2]
WON = 18.0  # the score at which Pong counts as won
RATE_S = 5.0  # the time over which a run's rate is measured
DRY: Row = {"envs": 4, "horizon": 4, "workers": 2, "decorrelation_steps": 3, "frame_shape": [42, 42]}


def pong(rows: Rows) -> None:
    """Trains ppo_small on Pong until it has won; a later call starts again if this one is cut off before."""
    curve: list[list[float]] = []

    def row() -> Row:
        won = next((minutes for minutes, _, score in curve if score >= WON), None)
        last = dict(zip(("minutes", "steps", "score"), curve[-1], strict=True)) if curve else {}
        return {"minutes_to_18": won, **last, "curve": curve}

    def on_row(metrics: dict[str, float]) -> bool:
        score = metrics.get("rollout/ep_rew_mean")
        if score is not None and score == score:
            curve.append([metrics["time/time_elapsed"] / 60, metrics["time/total_timesteps"], score])
            rows.put({"name": "ppo_small", **row(), "complete": False})
        return row()["minutes_to_18"] is not None

    settings: Row = {"algo": "ppo_small", "seed": 42, "log_interval_steps": 20_000}
    if rows.is_dry:
        settings |= {**DRY, "steps": 96, "log_interval_steps": 48, "max_episode_steps": 8}

    def learn() -> Row:
        train(settings, on_row)
        return row()

    rows.add("ppo_small", learn)


def learners(rows: Rows) -> None:
    """Trains one and two learners on one GPU, with gradients by shared memory and Gloo, or with a central store."""
    rows.add("1 learner", train_learners, rows.is_dry, 1, {"device": "cuda:0"})
    for update in ("all_reduce", "central_store"):
        two = {"devices": "cuda:0", "learners_per_gpu": 2, "update": update}
        rows.add(f"2 learners, {update}", train_learners, rows.is_dry, 1, two)


def scaling(rows: Rows) -> None:
    """Trains learners on one GPU each, with equally many environments, by NCCL or with a central store."""
    for update in ("all_reduce", "central_store"):
        for number in [number for number in (1, 2, 4, 8) if number <= num_gpus()]:
            where = {"devices": f"0-{number - 1}" if number > 1 else "0", "update": update}
            rows.add(f"{number} learners, {update}", train_learners, rows.is_dry, number, where)


def train_learners(is_dry: bool, times_envs: int, where: Row) -> Row:
    """Returns the rate of A2C, and the share of time that the exchange takes."""
    settings: Row = {"algo": "a2c", "envs": 224 * times_envs, "log_interval_steps": 5000, "steps": 10**9}
    if is_dry:
        settings |= {**DRY, "envs": 4 * times_envs, "workers": None, "log_interval_steps": 40}
    rate, last = rate_of_run({**settings, **where}, 0 if is_dry else RATE_S)
    return {"steps_per_s": round(rate), "exchange_share": last.get("time/exchange_share")}


def launch(rows: Rows) -> None:
    """Runs launch_dgx.py on all GPUs, as a user does."""
    steps = 200 if rows.is_dry else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "runs/launch_dgx.py", "--algo", "a2c", "--env", "pong", "--steps", str(steps)]
        command += ["--out", f"{folder}/run", "--eval-interval-steps", "0", "--final-games", "0"]
        command += ["--envs", "8", "--no-tensorboard", "--no-report"] if rows.is_dry else []

        def run() -> Row:
            subprocess.run(command, check=True, cwd=ROOT)
            return dict(json.loads((Path(folder) / "run" / "summary.json").read_text()))

        rows.add("runs/launch_dgx.py", run)


def rate_of_run(settings: Row, at_least_s: float) -> tuple[float, dict[str, float]]:
    """Trains on Pong; returns the agent steps per second between the first row of the log and the last, and the last.

    The run ends with its steps, or with the first row that is at_least_s after the first one."""
    seen: list[dict[str, float]] = []

    def on_row(metrics: dict[str, float]) -> bool:
        seen.append(metrics)
        return len(seen) > 1 and seen[-1]["time/time_elapsed"] - seen[0]["time/time_elapsed"] >= at_least_s

    train(settings, on_row)
    seconds, steps = (seen[-1][name] - seen[0][name] for name in ("time/time_elapsed", "time/total_timesteps"))
    return steps / seconds, seen[-1]


def train(settings: Row, on_row: Callable[[dict[str, float]], Any]) -> None:
    """Trains on Pong in a temporary folder."""
    where = {} if "devices" in settings else {"device": "cuda:0"}
    common = {"env": "pong", "tensorboard": False, "report": False, "eval_interval_steps": 0}
    with tempfile.TemporaryDirectory() as folder:
        accel_rl.train(**{**common, **where, **settings}, out=Path(folder) / "run", callbacks=[on_row])


PARTS = {"pong": pong, "learners": learners, "scaling": scaling, "launch": launch}
