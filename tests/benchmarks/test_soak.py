"""The soak: it runs, counts what there is, and tells growth from none. And the benchmark of starting up."""

import json
from pathlib import Path
from typing import Any

import pytest

import soak


def samples(**last: float) -> list[dict[str, float]]:
    """Returns a sample for every 30 s of 10 minutes: equal but for the first minute, and what the last one has more."""
    found = []
    for seconds in range(30, 601, 30):
        sample = dict.fromkeys(soak.ALLOWED, 1000.0 if seconds > 60 else 0.0)
        sample |= {name: 1000.0 + more for name, more in last.items() if seconds > 540}
        found.append({"seconds": float(seconds), **sample})
    return found


def grown(**last: float) -> list[str]:
    return soak.grown(soak.growth(samples(**last), 60.0))


def test_growth_differs_from_warm_up() -> None:
    """Would catch a leak that goes unnoticed, and growth found where only the first minute differs."""
    assert grown() == []
    assert grown(uss_kb=499.0, rss_kb=499.0) == []
    assert grown(uss_kb=501.0) == ["uss_kb"]
    assert grown(fds=1.0, shm_files=1.0) == ["fds", "shm_files"]
    assert grown(uss_kb=-9000.0) == []


def test_a_short_soak(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a program that no longer runs, or counts nothing."""
    file = tmp_path / "soak.json"
    run_program("soak.py", "--seconds", 0.4, "--envs", 4, "--workers", 2, "--json", file)
    assert capsys.readouterr().out.splitlines()[-1].startswith(("constant", "growing: "))
    found = json.loads(file.read_text())
    assert {"machine", "options", "growing", "means"} <= found.keys()
    for sample in found["samples"]:
        assert sample["steps_per_s"] > 0 and sample["rss_kb"] > sample["uss_kb"] > sample["server_uss_kb"] > 0
        assert sample["processes"] >= 4  # server, launcher, two workers
        assert sample["fds"] > sample["server_fds"] > 0


def test_a_short_startup(run_program: Any, tmp_path: Path) -> None:
    """Would catch a program that no longer runs."""
    file = tmp_path / "startup.json"
    run_program("startup.py", "--workers", 2, "--rounds", 1, "--env", "CartPole-v1", "--json", file)
    seconds = json.loads(file.read_text())["seconds"]
    assert {name: len(values) for name, values in seconds.items()} == {"up": 1, "first_rollout": 1, "close": 1}
