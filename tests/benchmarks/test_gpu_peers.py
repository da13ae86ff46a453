"""Our training against another framework's on a fake GPU, with drivers that work, fail or are missing."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_rl.bench.timing import Schedule
from gpu import peers
from gpu.rows import Row, Rows, format_rows
from peer_process import DRIVERS
from training_contests import CONTESTS

# Reports its options as facts. Its iterations have 32 steps and 2 updates; with EnvPool it misses a package.
DRIVER = f"""
import sys, time
sys.path.insert(0, {str(DRIVERS)!r})
from turns import Turns

updates = 0
turns = Turns(lambda: updates)
if "--vectorization=envpool" in sys.argv:
    import no_such_pool
turns.ready(parameters=7, peer=" ".join(sys.argv[1:]))
while True:
    time.sleep(0.01)
    updates += 2
    turns.iterated(32)
"""
# Fails in its second turn that counts.
FAILING = DRIVER.replace("    updates += 2\n", "    updates += 2\n    if updates == 6: raise ValueError('no game')\n")


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[Row]]]:
    """Returns a function that holds A2C's contest between its named contestants and others.

    The function takes a driver in place of the real one, and returns each row's states, by row."""
    build = peers.builders

    def hold(driver: str, *names: str, **others: Callable[[], Any]) -> list[list[Row]]:
        (tmp_path / "toy.py").write_text(driver)

        def command(python: Path, name: str, settings: dict[str, Any]) -> Sequence[str]:
            return [sys.executable, str(tmp_path / "toy.py"), name, *(f"--{k}={v}" for k, v in settings.items())]

        def builders(*which: Any) -> dict[str, Callable[[], Any]]:
            return {**others, **{name: build(*which)[name] for name in names}}

        monkeypatch.setattr(peers, "builders", builders)
        monkeypatch.setattr(peers, "driver_command", command)
        monkeypatch.setattr(peers, "DRY", Schedule(0.001, 3))
        found: dict[str, list[Row]] = {}
        rows = Rows(lambda row: found.setdefault(row["name"], []).append(row), [], tmp_path, True)
        peers.hold("a2c", CONTESTS["a2c"], rows)
        assert all(len(states) == 4 for states in found.values()), "after each round, and at the end"
        return [*found.values()]

    return hold


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.gpu(fake=True)
def test_a_contest(hold: Callable[..., list[list[Row]]]) -> None:
    """Rows have rates and ratios round by round, sizes that can be compared, and the name of what is not installed."""
    states = hold(DRIVER, "ours, TF32", *peers.SB3)
    ours, processes, envpool = (row[-1] for row in states)
    assert [[state["complete"] for state in row] for row in states] == [[False, False, False, True]] * 3
    assert envpool == {"name": "a2c: SB3, EnvPool", "text": "not installed: no_such_pool", "complete": True}
    assert (ours["parameters"], processes["parameters"]) == (1_687_719, 7)
    assert (ours["steps_per_update"], processes["steps_per_update"]) == (16, 16)
    options = "sb3 --game=Pong --envs=4 --horizon=4 --algo=a2c --vectorization=subproc --device=cpu"
    assert processes["text"] == f"peer {options}"
    assert ours["over"].keys() == {"SB3, processes"} and len(ours["rates"]) == 3
    by_round = [mine / theirs for mine, theirs in zip(ours["rates"], processes["rates"], strict=True)]
    assert ours["over"]["SB3, processes"]["median"] == np.median(by_round)
    assert ours["low"] <= ours["steps_per_s"] == round(np.median(ours["rates"])) <= ours["high"]
    table = format_rows("peers", [ours, envpool]).splitlines()
    shown = f"| {ours['steps_per_s']:,} | {ours['low']:,} | {ours['high']:,} | "
    assert shown in table[2] and table[2].count(" to ") == 1
    assert table[3] == "| a2c: SB3, EnvPool |  |  |  |  |  |  |  | not installed: no_such_pool |"


def test_a_contestant_that_fails(hold: Callable[..., list[list[Row]]]) -> None:
    """A contestant that fails to start, or later, has an error in its row, and the others' rows are complete."""

    def fails() -> Any:
        raise MemoryError("no room\non the GPU")

    ours, processes = hold(FAILING, "SB3, processes", ours=fails)
    assert {row["error"] for row in ours} == {"MemoryError: no room on the GPU"}
    assert "error" not in processes[0] and processes[0]["steps_per_s"] > 0
    assert processes[-1]["error"] == "the driver of SB3, processes has ended; ValueError: no game"


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize("name", peers.CONTEST_NAMES)
def test_the_real_peer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable-Baselines3's network and batches are like ours."""
    pytest.importorskip("stable_baselines3")
    build, rows = peers.builders, dict[str, Row]()

    def builders(*which: Any) -> dict[str, Callable[[], Any]]:
        return {label: build(*which)[label] for label in ("ours, TF32", "SB3, processes")}

    monkeypatch.setattr(peers, "builders", builders)
    peers.hold(name, CONTESTS[name], Rows(lambda row: rows.update({row["name"]: row}), [], tmp_path, True))
    ours, theirs = rows.values()
    assert ours["parameters"] == theirs["parameters"]
    assert ours["steps_per_update"] == pytest.approx(theirs["steps_per_update"], rel=0.4)  # the last one is under way
