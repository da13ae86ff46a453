"""The benchmark of the tuner against a full grid: its result, its options, and a run on a simulated machine."""

import json
from pathlib import Path
from typing import Any

import pytest

import tuner
from accel_rl.bench.timing import Turns
from accel_rl.errors import UsageError
from accel_rl.hardware.topology import CpuTopology
from accel_rl.training import resolve as resolving
from accel_rl.tune import command
from accel_rl.tune.points import Point
from tuner import TunerOptions, compare, conclusion


class Simulated:
    """Has a rate that its point decides; the tuner's own search finds one worker slow, all later ones don't."""

    built = 0

    def __init__(self, settings: dict[str, Any], spec: Any, point: Point):
        self.name, self.shares = str(point), dict[str, float]()
        Simulated.built += 1
        workers = point.settings["workers"]
        self._rate = {1: 100.0 if Simulated.built <= 12 else 3000.0, 2: 1000.0, 4: 2000.0}[workers]

    def run(self, seconds: float) -> float:
        return self._rate

    def close(self) -> None:
        pass


def test_a_run_and_its_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Would catch a final between other points than the pick and the grid's best, and a ratio the wrong way round."""
    monkeypatch.setattr(resolving, "read_topology", lambda *_: CpuTopology(((0,), (1,)), (0, 0), 2))
    monkeypatch.setattr(command, "_build", Simulated)
    monkeypatch.setattr(Simulated, "built", 0)
    file = tmp_path / "out" / "tuner.json"
    tuner.run(TunerOptions(contests=("a2c",), seconds=0.01, minutes=0.1, grid_minutes=0.1, rounds=3, json=file))
    found = json.loads(file.read_text())["contests"]["a2c"]
    assert found["pick"].startswith("workers 4, ") and found["best of the grid"].startswith("workers 1, ")
    assert found["final"] == {found["pick"]: [2000.0] * 3, found["best of the grid"]: [3000.0] * 3}
    assert found["pick / best"]["median"] == pytest.approx(2 / 3) and found["at least"] == 0.95
    assert len(found["tuner"]["points"]) == len(found["grid"]["points"]) == 12
    assert "3 rounds: 0.667 (0.667 to 0.667); should be 0.95 or more" in capsys.readouterr().out


def test_the_same_point_needs_no_final() -> None:
    """Would catch a final of a point against itself."""
    point = Point((("workers", 2),))
    result = compare(point, point, {})
    assert result["pick / best"]["median"] == 1.0
    assert conclusion(result) == "the tuner's pick is the best of the grid: workers 2"
    other = Point((("workers", 4),))
    compared = compare(point, other, {str(point): Turns([1.0, 1.0]), str(other): Turns([2.0, 2.0])})
    assert "pick (workers 2) / the best of the grid (workers 4), 2 rounds: 0.500" in conclusion(compared)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"contests": ("a2cc",)}, "unknown contest 'a2cc'"),
        ({"minutes": 0.1}, "minutes=0.1 is too short for turns of 0.7 s"),
        ({"minutes": 5.0, "grid_minutes": 4.0}, "grid_minutes=4 must be at least minutes=5"),
    ],
)
def test_bad_options(bad: dict[str, Any], message: str) -> None:
    """Would catch an error that comes only after minutes of work."""
    with pytest.raises(UsageError, match=message):
        TunerOptions(**bad)
