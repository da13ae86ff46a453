"""Training with both simulators: parameters and figures are equal bit for bit, and a difference would be found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import same_training
from accel_rl.errors import UsageError
from same_training import compare, differences, digest


def test_digests() -> None:
    """Would catch a difference that leaves the digest as it is: of one bit, a name, a type or a number."""
    state = {"weight": torch.arange(3.0), "steps": 5, "each": [np.ones(2, np.float32)]}
    others: list[dict[str, Any]] = [
        {**state, "weight": torch.tensor([0, 1, np.nextafter(np.float32(2), np.float32(3))])},
        {**state, "weight": torch.arange(3.0).double()},
        {**state, "steps": 6},
        {**state, "each": [np.ones((2, 1), np.float32)]},
        {"weights": state["weight"], "steps": 5, "each": state["each"]},
    ]
    assert len({digest(each) for each in (state, *others)}) == 6
    assert digest(state) == digest({**state, "weight": torch.arange(3.0)})


def test_runs_that_are_known_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Would catch a program that begins anew after it was cut, keeps runs of other settings, or overlooks what
    differs."""
    trained: list[tuple[str, int, str]] = []
    is_cut: list[bool] = []
    file = tmp_path / "same.json"

    def train(settings: dict[str, Any], simulator: str) -> dict[str, Any]:
        if len(trained) == 3 and not is_cut:
            is_cut.append(True)
            raise KeyboardInterrupt
        trained.append((settings["algo"], settings["steps"], simulator))
        update = simulator if settings["algo"] == "dqn" else ""
        return {"policy": "", "update": update, "progress": "", "seconds": 1.0}

    monkeypatch.setattr(same_training, "train", train)
    with pytest.raises(KeyboardInterrupt):
        compare(["a2c_pong", "dqn_pong"], 1000, file)
    assert compare(["a2c_pong", "dqn_pong"], 1000, file) is False
    assert trained == [("a2c", 1000, "ale"), ("a2c", 1000, "native"), ("dqn", 1000, "ale"), ("dqn", 1000, "native")]
    assert "DIFFERENT: update" in capsys.readouterr().out
    assert differences(json.loads(file.read_text())["cases"]["a2c_pong"]) == []
    trained.clear()
    assert compare(["a2c_pong"], 2000, file) is True
    assert trained == [("a2c", 2000, "ale"), ("a2c", 2000, "native")]


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown case 'a2c_pnog'; did you mean a2c_pong"):
        compare(["a2c_pnog"], 1000, tmp_path / "same.json")
    with pytest.raises(UsageError, match="steps=20 must be at least 1000"):
        compare(["a2c_pong"], 20, tmp_path / "same.json")


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("case", ["a2c_sticky", "dqn_v5", "ppo_color"])
def test_training_is_the_same(case: str, tmp_path: Path) -> None:
    """Would catch any number in which the simulators differ, as far as a learner, an evaluation or a log sees it."""
    assert compare([case], 1000, tmp_path / "same.json")
    first, second = (json.loads((tmp_path / "same.json").read_text())["cases"][case][s] for s in ("ale", "native"))
    assert len(first["policy"]) == 64 and first["policy"] == second["policy"] != first["update"]
