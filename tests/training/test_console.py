"""What a run shows where output is no terminal."""

import threading
import time
from typing import Any

import pytest

from accel_rl.training import console
from accel_rl.training.console import Console


def test_lines_come_by_time_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Would catch a run that is silent while its environments are slow, scores without a name, and a thread that goes
    on after the run."""
    monkeypatch.setattr(console, "EVERY_S", 0.02)
    shown, deadline = Console(0, 4000, show=True), time.monotonic() + 60
    text = ""
    try:
        while text.count("\n") < 3 and time.monotonic() < deadline:
            text += capsys.readouterr().err
            time.sleep(0.01)
        assert {line.split("  ")[-1] for line in text.splitlines()} == {"no game finished yet"}
        shown.advance(1000)
        shown.show_scores(-20.25, 3.5)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "score" in line][:1]
        assert "1,000 steps" in line and "training score -20.2  evaluation score 3.5" in line and " left" in line
    finally:
        shown.close()
    assert "console" not in {thread.name for thread in threading.enumerate()}
