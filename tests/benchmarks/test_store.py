"""The benchmark of the central store: its contestants, table and JSON, from tiny real runs."""

import itertools
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import store as benchmark
import store_learner
from accel_rl.bench.timing import Turns
from accel_rl.errors import UsageError
from accel_rl.hardware.topology import available_cpus
from accel_rl.updates import CentralStore, StoreExchange, Update
from accel_rl.updates.optimizers import SGD
from store import STORES, StoreOptions

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "store.py"


@pytest.mark.slow
@pytest.mark.skipif(len(available_cpus()) < 2, reason="two learners need a logical CPU each")
def test_contestants_and_their_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch a program that no longer runs, another network than A3C-Net on Pong, and a rate of fewer than all
    learners."""
    options = ["--learners", "2", "--seconds", "0.02", "--rounds", "1", "--json", str(tmp_path / "out" / "s.json")]
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *options])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(PROGRAM), run_name="__main__")
    printed = capsys.readouterr().out
    written = (tmp_path / "out" / "s.json").read_text()
    assert str(tmp_path) not in written
    result = json.loads(written)
    assert result["parameters"] == 899_127 and len(set(result["cpus"])) == 2
    contestants = result["contestants"]
    assert contestants.keys() == {f"{name} x {number}" for name in STORES for number in (1, 2)}
    for name in ("no locks x 2", *(f"{name} x 1" for name in STORES)):
        assert contestants[name]["lock_share"] == 0.0

    one, two = (contestants[f"3 chunks x {number}"]["rates"][0] for number in (1, 2))
    ratios = result["ratios"]
    assert ratios["3 chunks: rate of 2 / 2 x rate of 1"]["median"] == pytest.approx(two / (2 * one))
    assert ratios["3 chunks: time of an update, 2 learners / 1"]["median"] == pytest.approx(2 * one / two)
    assert printed.count("should be at least 0.6") == 1 and "should be at most" not in printed


def test_ratios_of_many() -> None:
    """Would catch a target for the wrong contestant, and a time that is really a rate."""
    turns = {"3 chunks x 1": Turns([100.0, 200.0]), "3 chunks x 8": Turns([400.0, 800.0])}
    found = benchmark.ratios("3 chunks", [1, 8], turns)
    assert found["3 chunks: rate of 8 / 8 x rate of 1"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    time_of_8 = {"median": 2.0, "low": 2.0, "high": 2.0, "at most": 3.0}
    assert found["3 chunks: time of an update, 8 learners / 1"] == time_of_8


def test_updates_are_made_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch updates that do not reach the store, and a wrong count of them."""
    clock = SimpleNamespace(perf_counter=itertools.count(1.0).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(store_learner, "time", clock)  # every look at it takes a second
    network = nn.Linear(3, 2)
    store = CentralStore(torch.zeros(8), {})
    update = Update(network, SGD(), exchange=StoreExchange(store))
    update.parameters.gradient.fill_(1.0)
    updates, seconds, waited_s = store_learner.make_updates(update, 0.0, 0.0)
    assert updates == 1 and seconds > 0 and waited_s == 0
    before = store.chunks[0].version
    updates, _, _ = store_learner.make_updates(update, 0.0, clock.perf_counter() + 5)
    assert updates > 1 and store.chunks[0].version - before == updates
    assert torch.allclose(store.read()["parameters"], torch.full((8,), -1e-4 * (1 + updates)))
    store.close()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"learners": (0,)}, "learners=0 must be from 1 to"),
        ({"learners": (100_000,)}, "learners=100000 must be from 1 to .*, the number of logical CPUs"),
        ({"seconds": 0.0}, "seconds=0.0 must be greater than 0"),
        ({"rounds": 0}, "rounds=0 must be at least 1"),
    ],
)
def test_bad_options(bad: dict[str, Any], message: str) -> None:
    """Would catch an error that comes only after minutes of work."""
    with pytest.raises(UsageError, match=message):
        StoreOptions(**{"learners": (1,), **bad})
