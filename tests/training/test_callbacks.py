"""Tests of callbacks: they get every row, may end a run, and change nothing else."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY_LEARNERS_RUN, TINY_SERIAL_RUN, assert_same_policy, rows
from tests.helpers.runs import rows_without_time as without_time
from tests.helpers.samplers import TOYS

MORE: dict[str, Any] = {"log_interval_steps": 20, "eval_interval_steps": 40, "eval_episodes": 1, "steps": 80}
RUN: dict[str, Any] = {**TINY_SERIAL_RUN, **MORE, "algo": "a2c", "decorrelation_steps": 0}
TWO: dict[str, Any] = {**TINY_LEARNERS_RUN, **MORE, "algo": "a2c", "decorrelation_steps": 0}


def as_written(row: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in row.items()}


def filled(row: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in row.items() if text}


def test_callbacks_see_the_rows_and_change_nothing(tmp_path: Path) -> None:
    """Callbacks get every row once, and neither their changes nor their random numbers affect the run."""
    seen: list[dict[str, Any]] = []

    def meddles(row: dict[str, float]) -> None:
        for name in [*row]:
            row[name] = -1.0
        torch.manual_seed(1)
        np.random.seed(2)
        random.seed(3)
        torch.set_num_threads(1)

    settings = {**RUN, "env": f"{TOYS}:GlobalChance", "env_options": {"lengths": [3, 7]}}
    runs = []
    for name, callbacks in {"without": [], "with": [meddles, lambda row: seen.append(row)]}.items():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        runs.append(accel_rl.train(**settings, callbacks=callbacks, out=tmp_path / name))
    table = rows(runs[1])
    assert [as_written(row) for row in seen] == [filled(row) for row in table]
    assert sum("eval/mean_reward" in row for row in seen) == 2
    assert all(type(value) in (int, float) for row in seen for value in row.values())
    assert_same_policy(*runs, name="policy.safetensors")
    assert without_time(runs[0]) == without_time(runs[1])


IN_STEP, ASYNCHRONOUS = (
    pytest.param({**TWO, "update": update}, marks=[pytest.mark.slow, pytest.mark.multiprocess], id=update)
    for update in ("all_reduce", "central_store")
)
one_and_two = pytest.mark.parametrize("settings", [pytest.param(RUN, id="alone"), IN_STEP, ASYNCHRONOUS])


@one_and_two
def test_a_callback_ends_the_run_as_its_steps_would(settings: dict[str, Any], tmp_path: Path) -> None:
    """A callback ends the run with its last row, evaluation and checkpoint, and the run can be resumed."""
    seen: list[dict[str, float]] = []

    def ends(row: dict[str, float]) -> bool:
        seen.append(row)
        return row["time/total_timesteps"] >= 20

    num_steps = 10_000 if "update" in settings else 80
    run = accel_rl.train(**settings | {"steps": num_steps}, callbacks=[ends, lambda row: None], out=tmp_path / "run")
    last = rows(run)[-1]
    assert [as_written(row) for row in seen] == [filled(row) for row in rows(run)]
    assert last["eval/mean_reward"] and "ended by a callback at step" in (run / "log.txt").read_text()
    steps = int(last["time/total_timesteps"])
    assert checkpoint.load(run / "checkpoint.pt")["steps"] == steps < num_steps
    if settings is RUN:
        assert [row["time/total_timesteps"] for row in rows(run)] == ["20", "40"]
        accel_rl.train(resume=run)
        assert rows(run)[-1]["time/total_timesteps"] == "80"


def fails(row: dict[str, float]) -> None:
    if row["time/total_timesteps"] >= 40:
        raise KeyError("no such metric")


@one_and_two
def test_a_callback_that_raises_stops_the_run_with_a_checkpoint(settings: dict[str, Any], tmp_path: Path) -> None:
    steps = {"steps": 80 if settings is RUN else 10_000}
    with pytest.raises(KeyError, match="no such metric") as caught:
        accel_rl.train(**settings | steps, callbacks=[fails], out=tmp_path / "run")
    assert caught.traceback[-1].name == "fails"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "a callback failed, so the run stops:" in log and 'raise KeyError("no such metric")' in log
    assert 40 <= checkpoint.load(tmp_path / "run" / "checkpoint.pt")["steps"] < steps["steps"]
    if settings is RUN:
        assert [row["time/total_timesteps"] for row in rows(tmp_path / "run")] == ["20", "40"]


@pytest.mark.parametrize("callbacks", [print, [print, 3], "print", None])
def test_anything_else_than_functions_is_refused(callbacks: Any, tmp_path: Path) -> None:
    """Callbacks that are not a list of functions are refused before the run."""
    with pytest.raises(UsageError, match="must be a list of functions"):
        accel_rl.train(**RUN, callbacks=callbacks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
