"""The benchmark of emulators: its ratios, options and picture, and its JSON, from tiny real runs."""

import importlib.metadata
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from accel_rl.bench import contestants, emulator, emulator_contestants, emulator_table
from accel_rl.bench.bare import bare_emulation, bare_steps
from accel_rl.bench.emulator_figure import draw_emulator
from accel_rl.bench.timing import Turns
from accel_rl.cli import main
from accel_rl.emulator import BatchAtari
from accel_rl.envs import EnvConfig

Result = dict[str, Any]


def bench(arguments: str, folder: Path) -> Result:
    """Runs the command line; returns the JSON that it writes."""
    files = ["--json", str(folder / "b.json"), "--figure", str(folder / "b.png")]
    assert main(["bench", "emulator", *arguments.split(), "--rounds", "2", *files]) == 0
    result: Result = json.loads((folder / "b.json").read_text())
    return result


def check_contests(result: Result, part: str, contestants: set[str], ratios: set[str]) -> None:
    rows = [row for row in result["contests"] if row["part"] == part]
    assert rows
    for row in rows:
        assert contestants <= row["rates"].keys() == row["medians"].keys() and ratios == row["ratios"].keys()
        for name, rates in row["rates"].items():
            assert len(rates) == 2 and min(rates) > 0 and row["medians"][name] == statistics.median(rates)


def test_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a part on one core that cannot run, or that is missing in the JSON, the tables or the picture. Qbert
    has no prepared starts, which take half a second."""
    monkeypatch.setattr(emulator, "PYTHON_ROLLOUTS", 2)
    monkeypatch.setattr(emulator, "ENVS_PER_CORE", 2)
    result = bench("--games qbert --parts raw steps python --seconds 0.01", tmp_path)
    assert result["benchmark"] == "emulator" and result["machine"]["cores"] >= 1 and result["starts"] is None
    check_contests(result, "raw", {"ale", "undrawn", "every-4th"}, {"undrawn / ale", "every-4th / ale", "every / ale"})
    check_contests(result, "steps", {"ale", "native"}, {"native / ale"})
    assert [row["frames"] for row in result["contests"]] == ["", "104x80", "84x84"]
    (python,) = result["python"]
    assert python["game"] == "qbert" and len(python["us_per_step"]) == 2 and min(python["us_per_step"]) > 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "frames/s on one core" in out and "frames of 84x84" in out and "us of Python" in out and "b.png" in out


@pytest.mark.slow
def test_all_cores(tmp_path: Path) -> None:
    """Would catch a part with several processes that cannot run."""
    result = bench("--games qbert --parts vector sampler --num-envs 4 --seconds 0.02", tmp_path)
    check_contests(result, "vector", {"sampler", "own-sync", "ale-sync"}, {"sampler / best peer", "own / ale"})
    check_contests(result, "sampler", {"bare", "sampler"}, {"sampler / bare"})


@pytest.mark.slow
def test_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch starts that are not measured in processes and with caches of their own."""
    monkeypatch.setattr("accel_rl.bench.emulator_starts.NUM_STARTS", 1)
    starts = bench("--parts starts", tmp_path)["starts"]
    assert {name: len(seconds) for name, seconds in starts["seconds"].items()} == {
        "import torch": 1,
        "first start": 1,
        "later start": 1,
    }
    assert starts["ratios"]["first start"]["median"] > starts["ratios"]["later start"]["median"]
    assert starts["resident_mb"] >= starts["own_mb"] > 0


def turns(**rates: float) -> dict[str, Turns]:
    return {name.replace("_", "-"): Turns([rate, rate]) for name, rate in rates.items()}


def test_the_best_peer_counts() -> None:
    """Would catch a ratio to a slower peer, one of the reciprocal, or an own environment that is taken for a peer."""
    rates = turns(sampler=120.0, own_sync=150.0, ale_sync=80.0, ale_async=75.0, envpool_sync=90.0, envpool_async=100.0)
    ratios = emulator_table.contest_row("vector", "84x84", "pong", rates)["ratios"]
    assert ratios["sampler / best peer"]["median"] == pytest.approx(1.2)
    assert ratios["own / ale"]["median"] == pytest.approx(150 / 80)


def test_means_and_worst_games() -> None:
    """Would catch an arithmetic mean, and sizes of frames or ratios that are mixed."""
    rows = [
        emulator_table.contest_row("steps", "104x80", "pong", turns(ale=100.0, native=200.0)),
        emulator_table.contest_row("steps", "104x80", "enduro", turns(ale=100.0, native=800.0)),
        emulator_table.contest_row("steps", "84x84", "pong", turns(ale=100.0, native=150.0)),
    ]
    half, small = emulator_table.summarize(rows)
    assert (half["mean"], half["worst"], half["worst_game"]) == (pytest.approx(4.0), 2.0, "pong")
    assert (small["frames"], small["mean"]) == ("84x84", pytest.approx(1.5))


def test_compiled_calls_are_timed() -> None:
    """Would catch Python time that contains the emulation, and a clock that stays in the emulator."""
    with emulator_contestants._timed_calls() as durations:
        atari = BatchAtari("qbert", 1)
        before = len(durations)
        atari.step(np.zeros(1, np.int32))
    assert len(durations) == before + 1 and durations[-1] > 0
    BatchAtari("qbert", 1)
    assert len(durations) == before + 1


@pytest.mark.parametrize("simulator", ["native", "ale"])
def test_bare_work(simulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a simulator that cannot be stepped, or whose games are not reset when they end."""
    monkeypatch.setattr(contestants, "PROBED_ENVS", 1)
    env = EnvConfig("qbert", options={"max_episode_steps": 3, "noop_max": 0}, simulator=simulator)
    step = bare_steps(env, 2)
    assert [step() for _ in range(8)] == [2] * 8
    assert bare_emulation(env, 2)() == 2
    assert 0 <= contestants.resizing_share(env, 0.001) < 1


def test_picture_of_one_part(tmp_path: Path) -> None:
    """Would catch a picture that needs all parts, or EnvPool."""
    contest = emulator_table.contest_row("vector", "84x84", "pong", turns(sampler=120.0, own_sync=150.0, ale_sync=80.0))
    machine = {"cpu": "A CPU", "cores": 2, "packages": {"ale-py": "0.12.1"}}
    result = {"contests": [contest], "machine": machine, "missing_peers": {"envpool": "pip install it"}}
    draw_emulator(result, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000
    draw_emulator({**result, "contests": []}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_without_numba(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an error that comes only when the native simulator's turn has come."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(emulator, "compare", lambda *_: pytest.fail("work has begun"))
    assert main(["bench", "emulator"]) == 2
    assert "Numba, which is not installed: pip install" in capsys.readouterr().err
