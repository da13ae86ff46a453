"""Tests of runs whose clock is set back and forward, or whose logical CPUs are taken away."""

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import accel_rl
from accel_rl.hardware import placement
from accel_rl.run_folder.directory import launcher_id
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.runs import TINY, TINY_RUN, rows
from tests.helpers.samplers import COUNTING, closing, make

DAY_S = 86_400.0
CAN_PIN = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned here")


@pytest.fixture
def mad_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the clock jump by days between readings, here and in processes that are forked from this one."""
    days, now = itertools.cycle((0, 3, -2, 1, -5)), time.time
    monkeypatch.setattr(time, "time", lambda: now() + DAY_S * next(days))
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))


@pytest.mark.parametrize("settings", [TINY_RUN, {**TINY, "algo": "ga3c", "predictors": 1, "trainers": 1}])
@pytest.mark.slow
@pytest.mark.usefixtures("mad_clock")
@pytest.mark.multiprocess
def test_the_clock_is_set_again_and_again(settings: dict[str, Any], tmp_path: Path) -> None:
    """Setting the clock neither ends a run nor makes times or speeds negative."""
    steps = {"steps": 80, "log_interval_steps": 20, "eval_interval_steps": 40, "eval_episodes": 2}
    accel_rl.train(**{**settings, **steps, "tensorboard": True}, out=tmp_path)
    table = rows(tmp_path)
    assert table
    for row in table:
        assert 0 < float(row["time/time_elapsed"]) < DAY_S and float(row["time/fps"]) > 0
        assert all(float(row[name]) >= 0 for name in row if name.endswith("_share") and row[name])


def test_who_has_started_a_run_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's identity does not depend on the clock."""
    before = launcher_id()
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: 1.0)
    assert launcher_id() == before or sys.platform != "linux"


@CAN_PIN
@pytest.mark.slow
@pytest.mark.multiprocess
def test_cpus_are_taken_away(tmp_path: Path) -> None:
    """A run completes when all its processes are left with one logical CPU."""
    usual, first = os.sched_getaffinity(0), min(os.sched_getaffinity(0))
    seen = []

    def take_away(row: dict[str, float]) -> None:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        threads = [thread.id for process in processes for thread in process.threads()]
        for thread in threads:
            os.sched_setaffinity(thread, {first})
        seen.append(len(processes))

    try:
        accel_rl.train(**TINY_RUN, steps=80, log_interval_steps=20, out=tmp_path, callbacks=[take_away])
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), usual)
    assert len(seen) == 4 and min(seen) >= 4
    assert rows(tmp_path)[-1]["time/total_timesteps"] == "80"


@CAN_PIN
@pytest.mark.multiprocess
def test_cpus_that_are_gone() -> None:
    """Workers start although the logical CPUs planned for them are gone."""
    no_cpu = 1023
    with pytest.raises(OSError, match="Invalid argument"):
        os.sched_setaffinity(0, {no_cpu})
    with placement.pinned((no_cpu,)):
        sampler = make(AlternatingSampler, COUNTING, SamplerConfig(4, 5, 2, worker_cpus=(no_cpu, no_cpu)))
    with closing(sampler):
        assert sampler.collect().valid.all()
