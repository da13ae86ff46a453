"""Faults at random times: the program runs, strikes, and sees what is lost."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import chaos
from accel_rl.errors import RunError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in the way of Linux"),
    pytest.mark.multiprocess,
    pytest.mark.slow,
]


def test_a_short_chaos(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs, its faults strike, and the runs survive them."""
    file = tmp_path / "chaos.json"
    run_program("stress/chaos.py", "--minutes", 0.3, "--seed", 1, "--json", file)
    found = json.loads(file.read_text())
    assert found["exact_runs"] == 1 and found["wrong"] == []
    assert sum(fault["times"] for fault in found["faults"].values()) > 0
    assert "nothing was lost: 1 runs are bit for bit as without faults" in capsys.readouterr().out


def test_what_is_left_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that leaves processes, or that does not end, is reported."""
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
