"""The benchmark of compiled updates' scores: it continues where it stopped, and says whether intervals overlap."""

import json
from pathlib import Path
from typing import Any

import pytest

import compiled_scores
from accel_rl.errors import UsageError

TASK = "CartPole-v1"


def run_of(mode: str, score: float, share: float = 1.0) -> dict[str, Any]:
    return {"command": f"accel-rl train --compile {mode}", "score": score, "compiled_share": share}


def held(**scores: list[float]) -> dict[str, Any]:
    runs = {f"{mode} {seed}": run_of(mode, score) for mode, found in scores.items() for seed, score in enumerate(found)}
    return {"names": ["a2c", "a2c_again"], "runs": runs}


def test_the_table_says_whether_intervals_overlap() -> None:
    """Means have intervals over seeds, and a preset with one mode only has no line."""
    known = {
        TASK: {
            "a2c": held(always=[400, 500, 450], never=[440, 500, 500]),
            "ppo": held(always=[100, 110, 120], never=[440, 500, 500]),
            "dqn": held(always=[100.0]),
        }
    }
    _, _, same, other = compiled_scores.table(known).splitlines()
    assert same == f"| {TASK} | `a2c`, `a2c_again` | 450 (400 to 500) | 480 (440 to 500) | yes |"
    assert other.endswith("| 110 (100 to 120) | 480 (440 to 500) | **no** |")


def test_only_what_is_missing_is_run() -> None:
    """Runs that the file holds are not made again; a preset that is refused or not compiled is skipped."""

    def keys(runs: dict[str, Any]) -> list[str]:
        known = {TASK: {"a2c": {"names": ["a2c"], "runs": runs}}}
        return [key for _, _, _, key, _ in compiled_scores.missing([TASK], ["a2c"], [1, 2], known)]

    assert keys({}) == ["always 1", "never 1", "always 2", "never 2"]
    assert keys({"always 1": run_of("always", 9.0)}) == ["never 1", "always 2", "never 2"]
    assert not keys({"always 1": run_of("always", 9.0, share=0.0)})
    assert not keys({"always 1": {"command": "accel-rl train", "refused": "no Box actions"}})


def test_presets_are_the_users() -> None:
    """Every preset belongs to one set, and an unknown one is refused."""
    names = [name for names in compiled_scores.distinct_sets(TASK).values() for name in names]
    assert sorted(names) == compiled_scores.preset_names()
    with pytest.raises(UsageError, match="ppoo"):
        compiled_scores.run([TASK], ["ppoo"], [1], Path("none.json"))


@pytest.mark.slow
def test_a_run_is_trained_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The program writes a short run's score and continues from its file; a refused task is noted."""
    monkeypatch.setattr(compiled_scores, "MODES", ("never",))
    monkeypatch.setattr(compiled_scores, "STEPS", {TASK: 320, "Pendulum-v1": 320})
    file = tmp_path / "scores.json"
    first = compiled_scores.run([TASK], ["a2c"], [1], file)
    assert first[TASK]["a2c"]["runs"]["never 1"]["score"] > 0
    second = compiled_scores.run(["Pendulum-v1"], ["dqn"], [1], file)
    assert "Box" in second["Pendulum-v1"]["dqn"]["runs"]["never 1"]["refused"]
    capsys.readouterr()
    assert compiled_scores.run([TASK], ["a2c"], [1], file) == second == json.loads(file.read_text())["tasks"]
    assert not capsys.readouterr().out
