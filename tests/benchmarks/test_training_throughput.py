"""The benchmark of training: its contests, tables and JSON, from tiny real runs; and the peers' real set-up."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import training_throughput as training
from peer_process import DRIVERS, driver_command
from training_contests import Contest
from training_throughput import TrainingOptions

# A peer whose iterations of 8 steps and 1 update take 10 ms; it reports its options as facts.
DRIVER = """
import sys, time
sys.path.insert(0, "{drivers}")
from turns import Turns

updates = 0
turns = Turns(lambda: updates)
turns.ready(parameters=7, options=sys.argv[1:])
while True:
    time.sleep(0.01)
    updates += 1
    turns.iterated(8)
"""
QUICK = {"workers": 1, "decorrelation_steps": 0}
SMALL = {"algo": "a2c", "envs": 4, "horizon": 2, "env_preset": "dqn84", "network": "nature", **QUICK}
CONTEST = Contest("A2C, small", SMALL, "peer", "small", {"mode": "slow"}, 5.0)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingOptions:
    """Returns options whose first contest has the peer above, and whose second contest's peer is missing."""
    (tmp_path / "peer" / "bin").mkdir(parents=True)
    (tmp_path / "peer" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "small.py").write_text(DRIVER.format(drivers=DRIVERS))

    def command(python: Path, driver: str, settings: dict[str, Any]) -> Sequence[str]:
        arguments = driver_command(python, driver, settings)
        return [arguments[0], str(tmp_path / "small.py"), *arguments[2:]]

    monkeypatch.setattr(training, "driver_command", command)
    monkeypatch.setattr(training, "CONTESTS", {"small": CONTEST, "missing": replace(CONTEST, peer="other")})
    pqn = {"algo": "pqn", "envs": 4, "horizon": 2, "minibatches": 2, "epochs": 1, "network": "a3c", **QUICK}
    a2c = {"algo": "a2c", "envs": 4, "horizon": 2, **QUICK}
    monkeypatch.setattr(training, "BOUNDS", {"bound": a2c, "bound-pqn": pqn})
    return TrainingOptions(
        contests=("small", "missing", "bound", "bound-pqn"),
        seconds=0.1,
        rounds=2,
        peers=tmp_path,
        json=tmp_path / "out" / "b.json",
    )


@pytest.mark.slow
def test_contests_and_their_table(options: TrainingOptions, capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios are ours over the peer's, settings match, and a contestant that is left out is named."""
    training.run(options)
    assert options.json
    written = options.json.read_text()
    assert str(options.peers) not in written
    result = json.loads(written)
    small = result["contests"]["small"]
    assert result["contests"].keys() == {"small", "bound", "bound-pqn"} and result["missing_peers"] == ["other"]

    contestants = small["contestants"]
    assert contestants.keys() == {"ours", "ours-bf16", "peer"}
    assert [c["steps_per_update"] for c in contestants.values()] == [8.0, 8.0, 8.0]
    assert contestants["peer"]["facts"]["options"] == ["--game=Pong", "--envs=4", "--horizon=2", "--mode=slow"]
    assert contestants["ours"]["facts"]["parameters"] == 1_687_719
    assert (contestants["ours"]["facts"]["bf16"], contestants["ours-bf16"]["facts"]["bf16"]) == (False, True)
    rates = {name: contestant["rates"] for name, contestant in contestants.items()}
    by_round = sorted(ours / peer for ours, peer in zip(rates["ours"], rates["peer"], strict=True))
    assert by_round[0] <= small["ratios"]["ours / peer"]["median"] <= by_round[-1]

    for bound, steps_per_update in ((result["contests"]["bound"], 8), (result["contests"]["bound-pqn"], 4)):
        assert bound["contestants"].keys() == {"simulation", "network", "ours", "bound"}
        assert bound["contestants"]["ours"]["steps_per_update"] == steps_per_update
        assert bound["contestants"]["bound"]["steps_per_second"] < bound["contestants"]["network"]["steps_per_second"]

    printed = capsys.readouterr().out
    assert "A2C, small: pong (dqn84), Nature-CNN" in printed and "ours-bf16 / peer" in printed
    assert "not installed: other" in printed and "--install-peers" in printed
