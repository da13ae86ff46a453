"""The soak: that it runs, counts what there is, and tells growth from none."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SOAK = runpy.run_path(str(BENCHMARKS / "soak.py"))


def samples(**last: float) -> list[dict[str, float]]:
    """One every 30 s of 10 minutes, all alike but for the first minute, and what the last minute has more."""
    found = []
    for seconds in range(30, 601, 30):
        sample = dict.fromkeys(SOAK["ALLOWED"], 1000.0 if seconds > 60 else 0.0)
        sample |= {name: 1000.0 + more for name, more in last.items() if seconds > 540}
        found.append({"seconds": float(seconds), **sample})
    return found


def grown(**last: float) -> list[str]:
    answer: list[str] = SOAK["grown"](SOAK["growth"](samples(**last), 60.0))
    return answer


def test_growth_is_told_from_warming_up() -> None:
    """Would catch a leak that is passed over, and growth found where only the first minute differs."""
    assert grown() == []
    assert grown(uss_kb=499.0, rss_kb=499.0) == []
    assert grown(uss_kb=501.0) == ["uss_kb"]
    assert grown(fds=1.0, shm_files=1.0) == ["fds", "shm_files"]
    assert grown(uss_kb=-9000.0) == []


def test_a_short_soak(tmp_path: Path) -> None:
    """Would catch a program that no longer runs, or counts nothing."""
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--seconds", "0.4", "--envs", "4", "--workers", "2"]
    result = subprocess.run(
        [*command, "--json", str(tmp_path / "soak.json")], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith(("constant", "growing: "))
    found = json.loads((tmp_path / "soak.json").read_text())
    assert {"machine", "options", "growing", "means"} <= found.keys()
    for sample in found["samples"]:
        assert sample["steps_per_s"] > 0 and sample["rss_kb"] > sample["uss_kb"] > sample["server_uss_kb"] > 0
        assert sample["processes"] == 4  # server, launcher, two workers
        assert sample["fds"] > sample["server_fds"] > 0


def test_a_short_startup(tmp_path: Path) -> None:
    """Would catch a program that no longer runs."""
    command = [
        sys.executable,
        str(BENCHMARKS / "startup.py"),
        "--workers",
        "2",
        "--rounds",
        "1",
        "--env",
        "CartPole-v1",
    ]
    result = subprocess.run(
        [*command, "--json", str(tmp_path / "startup.json")], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    seconds = json.loads((tmp_path / "startup.json").read_text())["seconds"]
    assert {name: len(values) for name, values in seconds.items()} == {"up": 1, "first_rollout": 1, "close": 1}
