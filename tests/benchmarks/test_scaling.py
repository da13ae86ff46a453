"""The benchmark of several learners: its runs, and the table and JSON of tiny real ones."""

import json
from pathlib import Path
from typing import Any

import pytest

import scaling
from accel_rl.hardware.topology import available_cpus, parse_cpus
from accel_rl.training import resolve as resolving
from scaling import ScalingOptions

needs_two = pytest.mark.skipif(len(available_cpus()) < 2, reason="two learners need a logical CPU each")


@pytest.mark.slow
@needs_two
@pytest.mark.multiprocess
def test_table_and_json(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Efficiency is the rate over that of one learner; each kind of learners has the shares that it loses."""
    file = tmp_path / "out" / "s.json"
    run_program("scaling.py", "--learners", 2, "--seconds", 0.05, "--rounds", 1, "--device", "cpu", "--json", file)
    one, synchronous, asynchronous = json.loads(file.read_text())["points"]
    assert [point["learners"] for point in (one, synchronous, asynchronous)] == [1, 2, 2]
    assert [point["update"] for point in (one, synchronous, asynchronous)] == [None, "all_reduce", "central_store"]
    for point in (synchronous, asynchronous):
        assert point["efficiency"]["median"] == pytest.approx(point["rates"][0] / one["rates"][0])
        assert point["at least"] == 0.85
    assert one["shares"].keys() & {"exchange", "straggler", "lock"} == set()
    assert synchronous["shares"]["exchange"] > 0 and "lock" not in synchronous["shares"]
    assert asynchronous["shares"]["lock"] >= 0 and "exchange" not in asynchronous["shares"]
    assert all(0 <= point["shares"]["between"] < 1 for point in (one, synchronous, asynchronous))
    printed = capsys.readouterr().out
    assert "all_reduce-2" in printed and "should be at least 0.85" in printed


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
