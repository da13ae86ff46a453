"""The settings for vectors on five environments: their program continues where it was cut, and shows its results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import defaults
from accel_rl.errors import UsageError
from defaults import ALGOS, SEEDS, TASKS, command, make_figure, run, table

ROOT = Path(__file__).parents[2]


def result(algo: str, task: str, seed: int) -> dict[str, Any]:
    """Returns a run that was not made: its score is 10 * seed, and it rose to that from 0."""
    curve = {"steps": [1000.0, 2000.0], "score": [0.0, 10.0 * seed]}
    return {"command": command(algo, task, seed), "seconds": 1.0, "score": {"mean_reward": 10.0 * seed}, "curve": curve}


def test_the_page_shows_the_results() -> None:
    """Would catch a table that is not of the committed results, and results of other commands than the program's."""
    known = json.loads((ROOT / defaults.RESULTS).read_text())["runs"]
    commands = [run["command"] for tasks in known.values() for runs in tasks.values() for run in runs.values()]
    assert commands == [command(algo, task, seed) for algo in ALGOS for task in TASKS for seed in SEEDS]
    assert table(known) in (ROOT / "docs/benchmarks.md").read_text()


def test_runs_that_are_known_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a program that begins anew after it was cut, loses what it had, or keeps other commands' results."""
    file, made = tmp_path / "defaults.json", []

    def train_and_evaluate(typed: str) -> dict[str, Any]:
        if len(made) == 3:
            made.append("cut")
            raise KeyboardInterrupt
        made.append(typed)
        return {"command": typed, "score": {"mean_reward": 10.0}}

    monkeypatch.setattr(defaults, "train_and_evaluate", train_and_evaluate)
    with pytest.raises(KeyboardInterrupt):
        run(["a2c"], [1], file)
    assert [*run(["a2c"], [1], file)["a2c"]] == [*TASKS] and len(made) == len(TASKS) + 1
    assert [*run(["dqn"], [1], file)] == ["dqn", "a2c"] and len(made) == 2 * len(TASKS) + 1
    monkeypatch.setitem(TASKS, "CartPole-v1", ("--env CartPole-v1", 1000, 2000))
    assert run(["a2c"], [1], file)["a2c"]["CartPole-v1"]["1"]["command"] == made[-1]
    assert made[-1] == "accel-rl train --algo a2c --env CartPole-v1 --steps 2000 --seed 1"
    assert len(made) == 2 * len(TASKS) + 2
    assert run([], [], file) == json.loads(file.read_text())["runs"]


def test_table_and_figure() -> None:
    """Would catch scores in wrong rows or columns, and curves of other runs than the panel's."""
    scale = {"dqn": 1, "a2c": 3}
    known = {
        algo: {task: {str(s): result(algo, task, s * k * (i + 1)) for s in (4, 6)} for i, task in enumerate(TASKS)}
        for algo, k in scale.items()
    }
    lines = table(known).splitlines()
    assert lines[0] == "| | `dqn` | `a2c` |" and len(lines) == 2 + len(TASKS)
    assert lines[3] == "| Acrobot-v1 | **100** (80.0, 120) | **300** (240, 360) |"
    panels = make_figure(known).axes
    assert [axes.get_title() for axes in panels] == [*TASKS, ""]
    for index, axes in enumerate(panels[:-1]):
        means = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
        assert means["dqn"].tolist() == [0, 50 * (index + 1)] and means["a2c"].tolist() == [0, 150 * (index + 1)]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown algorithm 'dqm'; did you mean dqn"):
        run(["dqm"], [1], tmp_path / "defaults.json")
