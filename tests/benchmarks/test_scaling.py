"""The benchmark of several learners: its runs, table, figure and JSON, from tiny real runs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("matplotlib")

import scaling
import scaling_learner
from accel_rl.errors import RunError
from accel_rl.hardware.topology import available_cpus, parse_cpus
from accel_rl.training import resolve as resolving
from scaling import LearnersRun, ScalingOptions
from scaling_learner import Turn

SMALL = {"algo": "a2c", "env": "CartPole-v1", "envs": 4, "horizon": 5, "sampler": "serial"}
needs_two = pytest.mark.skipif(len(available_cpus()) < 2, reason="two learners need a logical CPU each")


@pytest.mark.slow
@needs_two
def test_table_figure_and_json(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a program that no longer runs, an efficiency the wrong way round, and missing shares."""
    json_file, plot = tmp_path / "out" / "s.json", tmp_path / "s.png"
    options = ["--env", "CartPole-v1", "--learners", 2, "--seconds", 0.05, "--rounds", 1, "--device", "cpu"]
    run_program("scaling.py", *options, "--json", json_file, "--plot", plot)
    printed = capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    written = json_file.read_text()
    assert str(tmp_path) not in written
    one, synchronous, asynchronous = json.loads(written)["points"]

    assert [point["learners"] for point in (one, synchronous, asynchronous)] == [1, 2, 2]
    assert [point["update"] for point in (one, synchronous, asynchronous)] == [None, "all_reduce", "central_store"]
    for point in (synchronous, asynchronous):
        assert point["efficiency"]["median"] == pytest.approx(point["rates"][0] / one["rates"][0])
        assert point["at least"] == 0.85 and len(point["plan"]) == 2
    # Two synchronous learners meet twice per iteration, for the gradient and for the decision to stop.
    assert one["shares"].keys() & {"exchange", "straggler", "lock"} == set()
    assert synchronous["shares"]["exchange"] > 0 and "lock" not in synchronous["shares"]
    assert asynchronous["shares"]["lock"] >= 0 and "exchange" not in asynchronous["shares"]
    for point in (one, synchronous, asynchronous):
        shares = point["shares"]
        assert shares["sample"] + shares["learn"] + shares["between"] == pytest.approx(1.0)
        assert 0 <= shares["between"] < 1
    assert "all_reduce-2" in printed and "should be at least 0.85" in printed


@pytest.fixture(scope="module")
def learners() -> Iterator[LearnersRun]:
    if len(available_cpus()) < 2:
        pytest.skip("two learners need a logical CPU each")
    run = LearnersRun("two", {**SMALL, "devices": "cpu,cpu"})
    yield run
    run.close()


@pytest.mark.slow
def test_learners_run_only_in_turns(learners: LearnersRun) -> None:
    """Would catch learners that run between their turns, or do not run in them."""
    for _ in range(2):
        start = time.perf_counter()
        assert learners.run(0.1) > 0
        assert time.perf_counter() - start >= 0.1
    used = cpu_seconds(learners)
    time.sleep(0.3)
    assert cpu_seconds(learners) - used < 0.1
    deadline = time.monotonic() + 60
    while cpu_seconds(learners) - used < 0.2:
        learners.run(0.1)
        assert time.monotonic() < deadline


def cpu_seconds(run: LearnersRun) -> float:
    """Returns the CPU time that the run's learners have used."""
    times = [psutil.Process(learner.process.pid).cpu_times() for learner in run._learners]
    return sum(each.user + each.system for each in times)


def test_a_learner_that_dies(learners: LearnersRun) -> None:
    """Would catch a benchmark that waits for a dead learner, and processes that remain. This must be the last test of
    this file that uses these learners."""
    processes = [psutil.Process(learner.process.pid) for learner in learners._learners]
    os.kill(processes[0].pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"learner 0 \(cpu, process \d+\) exited with status -9"):
        learners.run(0.1)
    learners.close()
    assert not any(process.is_running() for process in processes)


def test_a_turn_is_whole_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a turn without a rollout, and a pause before a turn that counts as part of it."""
    now = [0.0]
    monkeypatch.setattr(scaling_learner.time, "perf_counter", lambda: now[0])
    turn = Turn()
    turn.begin(0.0)
    assert not turn and bool(turn)
    now[0] += 100
    turn.begin(10.0)
    assert not turn
    now[0] += 9
    assert not turn and turn.seconds == 9
    now[0] += 1
    assert turn and turn.seconds == 10


@pytest.mark.parametrize(("gpus", "numbers"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_numbers_of_learners_on_gpus(gpus: int, numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch GPUs that are left out."""
    monkeypatch.setattr(scaling.torch.cuda, "device_count", lambda: gpus)
    options = ScalingOptions()
    assert options.on_gpus and options.numbers == numbers


@needs_two
def test_runs_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch fewer environments per learner with several learners, and one learner with the CPUs of two."""
    monkeypatch.setattr(scaling.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(resolving, "find_devices", lambda text, per_gpu: tuple(text.split(",")))
    monkeypatch.setattr(resolving, "gpu_node", lambda device: None)
    monkeypatch.setattr(resolving, "gpu_has_bf16", lambda device: True)
    found = scaling.contestants(ScalingOptions())
    assert [*found] == ["one", "all_reduce-2", "central_store-2"]
    assert [settings["envs"] for settings in found.values()] == [16, 32, 32]
    assert [settings["devices"] for settings in found.values()] == ["cuda:0", "cuda:0,cuda:1", "cuda:0,cuda:1"]
    num_cpus = [len(parse_cpus(settings["cpus"])) for settings in found.values()]
    assert num_cpus[1] == num_cpus[2] == len(available_cpus()) and num_cpus[0] <= -(-num_cpus[1] // 2)
