"""The benchmark of the replay: its contests and JSON, from tiny real runs."""

import json
import runpy
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import replay_contestants
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from replay import ReplayOptions
from replay_contestants import NUM_ENVS, Learners, random_rollouts

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "replay.py"


def test_contests_and_their_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch a program that no longer runs, a ratio the wrong way round, and the path of its file in the file."""
    options = ["--frames", "2048", "--seconds", "0.01", "--rounds", "1", "--json", str(tmp_path / "out" / "r.json")]
    contests = ["--contests", "memory", "stacks"]
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *options, *contests])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(PROGRAM), run_name="__main__")
    written = (tmp_path / "out" / "r.json").read_text()
    assert str(tmp_path) not in written
    found = json.loads(written)["contests"]
    assert found.keys() == {"memory", "stacks"}

    stacks = found["stacks"]
    assert stacks["title"] == "Uniform batches of 512, each 4x104x80, from 2,048 frames, one thread"
    rates = {name: contestant["rates"][0] for name, contestant in stacks["contestants"].items()}
    assert rates.keys() == {"stacks", "copy", "batch", "copy-2"}
    assert stacks["ratios"]["stacks / copy"]["median"] == pytest.approx(rates["stacks"] / rates["copy"])
    assert stacks["ratios"]["batch / copy-2"]["median"] == pytest.approx(rates["batch"] / rates["copy-2"])
    assert "should be at least 0.6" in capsys.readouterr().out

    memory = found["memory"]
    assert memory["frame_bytes"] == 2048 * 104 * 80
    assert memory["resident / frames"] > 1
    # 27 bytes per transition in the ring, 8 in the sum tree.
    assert 2048 * 35 < memory["other_bytes"] < 1.3 * 2048 * 35


def test_both_learn_from_the_same_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch learners that differ in more than how they draw, one without updates, and rates in other units."""
    monkeypatch.setattr(replay_contestants, "BATCH", 16)
    learners = Learners(2048, "cpu")
    prioritized, uniform = (algo.replay for algo in learners.algos)
    assert prioritized and uniform and uniform.ring is prioritized.ring
    assert prioritized.num_samples == uniform.num_samples == 2048
    assert prioritized.priorities and uniform.priorities is None
    assert bool(prioritized.ring.return_valid.any())
    assert prioritized.draw(4)[1] is not None and uniform.draw(4)[1] is None
    for index in range(2):
        contestant = learners.contestant("learner", index)
        before = learners.updates[index].parameters.values.clone()
        assert contestant._work() == 2  # 16 samples, each used 8 times
        assert not torch.equal(learners.updates[index].parameters.values, before)
    assert float(prioritized.priorities.tree[:].min()) < float(prioritized.priorities.tree[:].max()) == 1.0


def test_rollouts_follow_each_other() -> None:
    """Would catch episodes that break off between two rollouts, and frames that are all equal."""
    spec = EnvSpec(gymnasium.spaces.Box(0, 255, (3, 2), np.uint8), gymnasium.spaces.Discrete(5), 4)
    first, second = islice(random_rollouts(spec, 300), 2)
    assert torch.equal(first.age[-1], second.age[0]) and second.first_step == 300 * NUM_ENVS
    assert torch.equal(first.terminated, first.age[1:] == 0) and bool(first.terminated.any(0).all())
    assert first.observation_rows.unique().numel() == 256


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"contests": ("memori",)}, "unknown contest 'memori'; did you mean memory"),
        ({"frames": 100}, "frames=100 must be at least 2048, four batches"),
        ({"seconds": 0.0}, "seconds=0.0 must be greater than 0"),
        ({"rounds": 0}, "rounds=0 must be at least 1"),
    ],
)
def test_bad_options(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReplayOptions(**bad)


def test_frames_that_exceed_memory_are_refused() -> None:
    """Would catch a benchmark that fills memory until the system kills it."""
    with pytest.raises(UsageError, match=r"frames=1,000,000,000 need .* GB on cpu, but .*; use --frames \d+ or less"):
        Learners(10**9, "cpu")
