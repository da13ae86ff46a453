"""Faults at random times: the program runs, causes faults, and notices losses."""

import json
import sys
from pathlib import Path

import pytest

import chaos
from accel_rl.errors import RunError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in the way of Linux"),
    pytest.mark.multiprocess,
    pytest.mark.slow,
]


def test_a_short_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults occur, and the run survives them."""
    file = tmp_path / "chaos.json"
    monkeypatch.setattr(sys, "argv", ["chaos.py", "--minutes", "0.1", "--seed", "1", "--json", str(file)])
    monkeypatch.setattr(chaos, "STEPS", 8_000)
    monkeypatch.setattr(chaos, "BETWEEN_S", (1.0, 4.0))
    chaos.main()
    found = json.loads(file.read_text())
    assert found["exact_runs"] == 1 and found["wrong"] == []
    assert sum(fault["times"] for fault in found["faults"].values()) > 0
    assert "nothing was lost: 1 runs are bit for bit as without faults" in capsys.readouterr().out


def test_what_is_left_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that leaves processes behind, or does not end, is noticed."""
    monkeypatch.setattr(chaos, "WITHIN_S", 1.0)
    run = chaos.Run(tmp_path, exact=True)
    run.begin()
    try:
        with pytest.raises(RunError, match="left behind"):
            chaos.wait_for_the_end_of(run)
    finally:
        assert run.process
        run.process.kill()
        run.process.wait()
