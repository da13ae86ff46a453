"""Tests of what a run shows in a terminal and elsewhere."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from accel_rl.training import console
from accel_rl.training.console import Console, sparkline
from accel_rl.training.metrics import IntervalMetrics
from accel_rl.training.progress import Progress


def test_lines_come_by_time_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Lines appear while no step completes, scores have names, and the console's thread ends with it."""
    monkeypatch.setattr(console, "EVERY_S", 0.02)
    shown, deadline = Console(0, 4000, show=True), time.monotonic() + 60
    text = ""
    try:
        while text.count("\n") < 3 and time.monotonic() < deadline:
            text += capsys.readouterr().err
            time.sleep(0.01)
        assert all(line.endswith("0 steps/s") for line in text.splitlines())
        shown.show_row({}, None)
        assert "steps/s  no game finished yet" in capsys.readouterr().err
        shown.advance(1000)
        shown.show_row({"rollout/ep_rew_mean": -20.25, "train/loss": 0.5}, 3.5)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "score" in line][:1]
        assert "1,000 steps" in line and "training score -20.2  evaluation score 3.5" in line and " left" in line
    finally:
        shown.close()
    assert "console" not in {thread.name for thread in threading.enumerate()}


def test_time_left_is_that_of_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time left is computed from the speed since learning began."""
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    shown = Console(0, 100_000, show=False)
    left, learned = [], {"train/loss": 0.5}
    for seconds, steps, row in [(10, 10_000, {}), (15, 15_000, None), (20, 20_000, {}), (30, 20_500, learned)]:
        clock = seconds
        shown.advance(steps)
        if row is not None:
            shown.show_row(row, None)
        left.append(shown._time_left(clock))
    assert left == ["", "", "", "26 min left"]  # 79,500 steps at 50 per second


def test_the_panel_says_what_the_lines_say(capsys: Any) -> None:
    """The panel shows the row's numbers by name and is as wide as the terminal."""
    shown = Console(0, 4000, show=False)
    shown.advance(1000)
    for score in (1.0, 2.0, 8.0):
        times = {"time/env_wait_share": 0.25, "time/fps": 5.0}
        shown.show_row({"rollout/ep_rew_mean": score, **times, "train/tail_share": 0.5}, 3.5)
    texts = {}
    for width in (100, 40):
        terminal = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        terminal.print(shown.panel())
        texts[width] = terminal.file.getvalue()  # type: ignore[attr-defined]
        assert {len(line) for line in texts[width].splitlines()} == {width}
    for words in (
        "agent steps +1,000 of 4,000",
        "training score +8.0 +▁▂█",
        "evaluation score +3.5",
        "env wait 25%",
        r"time left +\d",
    ):
        assert re.search(words, texts[100]), (words, texts[100])
        assert re.search(words.removesuffix(" +▁▂█"), texts[40]), (words, texts[40])
    assert "tail" not in texts[100]  # an algorithm's statistic is not a share of time
    assert not capsys.readouterr().err
    line = sparkline(range(1000), 8)
    assert line == "▁▂▃▄▅▆▇█" and sparkline([5, 5], 8) == "▁▁" and sparkline([], 8) == ""


def test_the_line_on_who_waited_is_about_all_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line weights rows by their wall time. A GPU is idle when it neither acts nor learns. Without a GPU there is
    no such line."""
    clock = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)

    def line(*parts: dict[str, float]) -> str:
        nonlocal clock
        progress = Progress(tmp_path, 0, 100, use_tensorboard=False, show=False)
        for wall_s, seconds in zip((1.0, 3.0), parts, strict=True):
            clock += wall_s
            progress.merge([IntervalMetrics([], {}, seconds, wall_s, 0, {})])
            row = progress.write_row()
        assert row.get("time/gpu_idle_share") == (0.25 if "gpu" in seconds else None)
        return progress.describe_waits()

    waits = [{"action_wait": 0.5, "gpu_wait": 0.1, "gpu": 1.01}, {"action_wait": 0.5, "gpu_wait": 0.1, "gpu": 2.25}]
    assert line(*waits) == "time        simulators wait for actions 25 %, the server for the GPU 5 %, GPU idle 19 %"
    assert line({"action_wait": 0.5}, {"action_wait": 0.5}) == ""


def read_terminal(primary: int) -> str:
    """Returns all that is written to a terminal until it is closed."""
    output = b""
    with os.fdopen(primary, "rb", buffering=0) as file, contextlib.suppress(OSError):  # raised at its end
        while piece := file.read(1 << 16):
            output += piece
    return output.decode()


def test_what_is_written_beside_the_panel(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Messages near the panel stay unbroken, stdout stays separate, and the cursor ends below the panel."""
    primary, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with ThreadPoolExecutor() as reader, os.fdopen(terminal, "w") as stderr:
        reading = reader.submit(read_terminal, primary)
        monkeypatch.setattr(sys, "stderr", stderr)
        shown = Console(0, 4000, show=True)
        try:
            print("a long command " * 20, file=sys.stderr)
            print("to a file")
        finally:
            shown.close()
    output = reading.result()
    assert "a long command " * 20 in output
    assert capsys.readouterr().out == "to a file\n" and "to a file" not in output
    assert re.search(r"╯(\x1b\[0m)?\r?\n", output[: output.rindex("╯")]), output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xterm-256color", "dumb"])
def test_a_run_in_a_terminal(tmp_path: Path, kind: str) -> None:
    """A terminal shows panel and messages and gets its cursor back; a dumb one gets lines only."""
    command = [sys.executable, "-m", "accel_rl", "train", "--env", "CartPole-v1", "--steps", "4000", "--no-report"]
    primary, terminal = pty.openpty()
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")], stdout=terminal, stderr=terminal, env={**os.environ, "TERM": kind}
    ) as process:
        os.close(terminal)
        text = read_terminal(primary)
    assert process.returncode == 0
    assert ("╭" in text) == (kind != "dumb")
    assert text.rfind("\x1b[?25l") < text.rfind("\x1b[?25h") or kind == "dumb"  # the cursor is hidden, then shown
    for words in ("workers", "training score", "run folder"):
        assert words in text
