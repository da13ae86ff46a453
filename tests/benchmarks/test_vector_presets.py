"""Every set of settings for vectors on CartPole: the program continues where it was cut, and shows its results."""

import json
from pathlib import Path
from typing import Any

import pytest

import vector_presets
from accel_rl.config.presets import preset_names
from accel_rl.errors import UsageError
from vector_presets import command, distinct_sets, run, table

ROOT = Path(__file__).parents[2]


def test_the_page_shows_results_of_todays_settings() -> None:
    """Would catch a preset that was changed and not trained again, and a table that is not of the results."""
    known, sets = json.loads((ROOT / vector_presets.RESULTS).read_text())["sets"], distinct_sets()
    assert {*preset_names()} - {name for names, _ in sets for name in names} == {"a2c_continuous"}
    for names, settings in sets:
        for seed, result in known.get(names[0], {"runs": {}})["runs"].items():
            assert (known[names[0]]["settings"], result["command"]) == (settings, command(names[0], settings, seed))
    assert table(known) in (ROOT / "docs/benchmarks.md").read_text()


def test_what_is_known_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a program that begins anew after it was cut, or keeps results of other settings."""
    file, made = tmp_path / "vector_presets.json", list[str]()

    def train_and_evaluate(typed: str) -> dict[str, Any]:
        if len(made) == 2:
            made.append("cut")
            raise KeyboardInterrupt
        made.append(typed)
        return {"command": typed, "score": {"mean_reward": 440.0 + len(made)}, "curve": {"steps": [200_192.0]}}

    def make(*names: str) -> dict[str, Any]:
        return run(names, [1, 2], file)

    sets = [(["ppo", "ppo_16x128"], {"horizon": 128}), (["a3c"], {"update": "central_store"})]
    monkeypatch.setattr(vector_presets, "train_and_evaluate", train_and_evaluate)
    monkeypatch.setattr(vector_presets, "distinct_sets", lambda: sets)
    with pytest.raises(KeyboardInterrupt):
        make()
    make("ppo_16x128")
    ppo = "accel-rl train --algo ppo --env CartPole-v1 --steps 200000 --sampler serial --seed"
    assert made == [f"{ppo} 1", f"{ppo} 2", "cut"]
    sets[0][1]["horizon"] = 64
    known = make()
    assert made[3].endswith("--seed 1") and made[5].startswith("accel-rl train --algo a3c") and "400000" in made[6]
    assert len(made) == 7 and json.loads(file.read_text())["sets"] == known
    assert table({"a3c": known["a3c"]}).endswith("\n\nNot run yet: `ppo`, `ppo_16x128`.")
    assert table(known).splitlines()[2:] == [
        "| `ppo`, `ppo_16x128` | 200,192 | **444** | 444, 445 |",
        "| `a3c` | 200,192 | **446** | 446, 447 |",
    ]
    with pytest.raises(UsageError, match="pqo"):
        make("pqo")
