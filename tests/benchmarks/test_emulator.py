"""The benchmark of emulators: its ratios, and its JSON from tiny real runs."""

import json
from pathlib import Path
from typing import Any

import pytest

import emulator
from accel_rl.bench.timing import Turns
from emulator import EmulatorOptions


@pytest.mark.slow
def test_every_part_and_its_json(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part lets its contestants take turns. Qbert has no prepared starts, which take half a second."""
    file = tmp_path / "b.json"
    run_program("emulator.py", "--games", "qbert", "--seconds", 0.01, "--rounds", 2, "--json", file)
    result = json.loads(file.read_text())
    assert [(row["part"], row["preset"]) for row in result["contests"]] == [
        *(("raw", "stooke"), ("steps", "stooke"), ("steps", "dqn84"), ("vector", "dqn84"))
    ]
    raw, half, _, vector = result["contests"]
    assert raw["rates"].keys() == {"ale", "undrawn", "every-4th", "every"} and half["rates"].keys() == {"ale", "native"}
    assert vector["rates"].keys() >= {"own-sync", "own-async", "ale-sync", "ale-async"}
    for row in result["contests"]:
        assert all(len(rates) == 2 and min(rates) > 0 for rates in row["rates"].values())
        assert row["ratios"].keys() == row["rates"].keys()
    assert "geometric mean" in capsys.readouterr().out


def test_ratios_are_to_the_faster_of_both_peers(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Ratios are over ale-py's faster variant; the mean over the games is geometric."""
    scales = iter((1.0, 4.0))

    def compare(*_: Any) -> dict[str, Turns]:
        own = 200.0 * next(scales)
        return {"own-sync": Turns([own] * 2), "ale-sync": Turns([80.0] * 2), "ale-async": Turns([100.0] * 2)}

    monkeypatch.setattr(emulator, "compare", compare)
    monkeypatch.setattr(emulator, "contestants", lambda *_: [])
    pong, qbert = emulator.measure("vector", EmulatorOptions(games=("pong", "qbert")))
    assert pong["ratios"]["ale-async"]["median"] == 1.0 and pong["ratios"]["own-sync"]["median"] == 2.0
    assert qbert["ratios"]["own-sync"]["median"] == 8.0 and qbert["ratios"]["ale-sync"]["median"] == 0.8
    assert "geometric mean    own-sync 4.00, ale-sync 0.80, ale-async 1.00" in capsys.readouterr().out
