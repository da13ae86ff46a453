"""The soak runs like a user's command, detects growth, and names what grows."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak import Soak, Watched, judge

ROOT = Path(__file__).parents[2]
CONFIG = {"envs": 8, "env": "pong"}
NAMES = ["command", "worker 0", "worker 1", "workers' fork server"]


def seen(**later: Any) -> Soak:
    """Returns half an hour of observations of a run. Its memory and files grow for ten minutes, then only as `later`
    says for worker 1 and the run, as functions of the minutes since the fifteenth."""
    soak = Soak(processes={pid: Watched(name) for pid, name in enumerate(NAMES)})
    soak.speeds = [(1000.0 * later.get("speed", lambda m: 1)(minute - 15), 50.0) for minute in range(1, 31)]
    for look in range(181):
        minute = look / 6
        since = max(0.0, minute - 15)
        soak.hours.append(minute / 60)
        soak.files.append(min(minute, 10) + later.get("files", lambda m: 0)(since))
        for process in soak.processes.values():
            values = {"memory": 90 + min(minute, 10), "descriptors": 20.0, "threads": 1.0, "mappings": 300.0}
            if process.name == "worker 1":
                values = {what: value + later.get(what, lambda m: 0)(since) for what, value in values.items()}
            process.add(minute / 60, values)
    return soak


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ({}, []),
        ({"memory": lambda m: 0.9 * m / 60}, []),
        ({"memory": lambda m: 50 * (m > 5)}, []),
        ({"memory": lambda m: -m}, []),
        ({"memory": lambda m: 1.1 * m / 60}, ["worker 1, which steps STEPPED, grows by 1.1 MB an hour"]),
        ({"descriptors": lambda m: m // 2}, ["worker 1, which steps STEPPED, grows by 30.* descriptors an hour"]),
        (
            {"threads": lambda m: m / 5, "mappings": lambda m: m},
            ["worker 1.* grows by 60.0 mappings an hour", "worker 1.* grows by 12.0 threads an hour"],
        ),
        ({"files": lambda m: m}, ["temporary files grow by 60.0 an hour"]),
        ({"speed": lambda m: 1 - 0.1 * (m > 7.5)}, ["the last quarter has 0.90 of the speed of the one before"]),
        ({"speed": lambda m: 1 - 0.5 * (m < 0)}, []),
    ],
)
def test_growth_differs_from_warm_up(later: Any, found: list[str]) -> None:
    """Steady growth counts as a leak; a warm-up or a single jump does not."""
    sentences = judge(seen(**later), CONFIG)
    stepped = "environments 2 to 3 and 6 to 7 of pong"
    assert len(sentences) == len(found)
    for sentence, pattern in zip(sentences, found, strict=True):
        assert re.fullmatch(pattern.replace("STEPPED", stepped), sentence), sentence


def test_processes_that_come_and_what_is_left_are_named() -> None:
    """A worker that begins late in the run is reported, and so is a process that outlives the run."""
    soak = seen()
    soak.processes[9] = Watched("worker 2")
    soak.processes[9].add(0.4, dict.fromkeys(("memory", "descriptors", "threads", "mappings"), 1.0))
    soak.left = ["process 5"]
    first, second = judge(soak, CONFIG)
    assert first == "worker 2 (process 9) began or ended in the second half"
    assert second == "after the end there was still process 5"


def soak(tmp_path: Path, seconds: float, *flags: Any) -> tuple[str, dict[str, Any]]:
    """Runs the program; returns its output and its JSON."""
    file = tmp_path / "soak.json"
    words = ["--run", "a2c", "--minutes", seconds / 60, "--json", file, *flags, "--log-interval-steps", 200]
    program = [sys.executable, str(ROOT / "benchmarks/stress/soak.py"), *map(str, words)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_short_soak(tmp_path: Path) -> None:
    """The program finds the run's processes, evaluations and speed."""
    flags = ["--env", "CartPole-v1", "--workers", 2, "--eval-interval-steps", 400, "--eval-steps", 160]
    _, found = soak(tmp_path, 10, *flags)
    assert [process["name"] for process in found["processes"]] == NAMES
    assert all(memory > 1 for process in found["processes"] for memory in process["memory"])
    assert found["evaluations"] > 0 and found["speeds"] and all(min(pair) > 0 for pair in found["speeds"])


@pytest.mark.slow
@pytest.mark.multiprocess
def test_an_environment_that_leaks_is_named(tmp_path: Path) -> None:
    """A leak is found and attributed to its environment."""
    env = "tests.helpers.toy_envs:Leaking"
    seed = int(np.random.SeedSequence(1, spawn_key=(0, 2, 0, 0)).generate_state(1)[0] >> 1)  # of environment 2
    flags = ["--env", env, "--env-options", f"{{leaking: {seed}}}", "--envs", 4, "--workers", 4]
    printed, found = soak(tmp_path, 8, *flags, "--eval-interval-steps", 0)
    pattern = rf"worker 2, which steps environment 2 of {env}, grows by ([\d,.]+) MB an hour"
    match = re.fullmatch(pattern, found["not_constant"][0])
    assert match and float(match[1].replace(",", "")) > 1000
    assert found["not_constant"][0] in printed
    growth = {process["name"]: process["per_hour"]["memory"] for process in found["processes"]}
    assert all(growth["worker 2"] > 10 * mb for name, mb in growth.items() if name != "worker 2")
