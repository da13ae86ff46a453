"""Shows a run on the console: as a panel in a terminal, elsewhere as a line for each row of the log.

After EVERY_S seconds without a row, a line shows that the run is alive."""

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accel_rl.training.log import print_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.panel import Panel

EVERY_S = 30.0
REFRESHES_PER_S = 4
BARS = "▁▂▃▄▅▆▇█"


class Console:
    """Shows agent steps, speed, scores, where the time goes, and the time left. Use it from one thread.

    steps: agent steps of the checkpoint that a resumed run continues from."""

    def __init__(self, steps: int, total_steps: int, show: bool):
        self._first_step = self._steps = self._shown_steps = steps
        self._total_steps = total_steps
        self._started = self._shown = time.monotonic()
        self._scores: dict[str, float] | None = None  # the last row's; None before the first row
        self._has_learned: bool | None = None  # None before the first row
        self._curve: list[float] = []  # the training score of each row
        self._shares: dict[str, float] = {}
        self._recent = deque([(self._started, steps)], maxlen=10 * REFRESHES_PER_S)  # times and steps of refreshes
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._has_lines, self._closed = show and not is_terminal, threading.Event()
        self._thread = threading.Thread(target=self._show_regularly, name="console", daemon=True)
        if self._has_lines:
            self._thread.start()
        self._live = self._start_panel() if show and is_terminal else None

    def advance(self, steps: int) -> None:
        """Updates the number of agent steps that the run has done."""
        self._steps = steps

    def show_row(self, row: Mapping[str, float], evaluation: float | None) -> None:
        """Shows a row of the log. evaluation: mean score of the last evaluation; None: there is none yet."""
        self._has_learned = self._has_learned or any(name.startswith("train/") for name in row)
        if not self._has_learned:  # filling a replay says nothing about the speed of learning
            self._started, self._first_step = time.monotonic(), self._steps
        training = row.get("rollout/ep_rew_mean")
        named = {"training score": training, "evaluation score": evaluation}
        self._scores = {name: score for name, score in named.items() if score is not None}
        if training is not None:
            self._curve.append(training)
        names = [name for name in row if name.startswith("time/") and name.endswith("_share")]
        self._shares = {name[len("time/") : -len("_share")].replace("_", " "): row[name] for name in names}
        if self._has_lines:
            self._show_line()

    def close(self) -> None:
        self._closed.set()
        if self._has_lines:
            self._thread.join()
        if self._live:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.stop()

    # ---- lines ----

    def _show_regularly(self) -> None:
        while not self._closed.wait(self._shown + EVERY_S - time.monotonic()):
            if time.monotonic() - self._shown >= EVERY_S:
                self._show_line()

    def _show_line(self) -> None:
        now, steps = time.monotonic(), self._steps
        speed = (steps - self._shown_steps) / max(now - self._shown, 1e-9)
        self._shown, self._shown_steps = now, steps
        scores = "  ".join(f"{name} {score:.1f}" for name, score in (self._scores or {}).items())
        if self._scores == {}:
            scores = "no game finished yet"
        line = f"{steps:>10,} steps  {speed:>7,.0f} steps/s  {scores:<20}  {self._time_left(now)}"
        print_line(line.rstrip())

    def _time_left(self, now: float) -> str:
        """Returns the time left, at this session's mean speed since learning began, evaluations included."""
        done, remaining = self._steps - self._first_step, self._total_steps - self._steps
        if self._has_learned is False or not done or remaining <= 0:
            return ""
        seconds = (now - self._started) / done * remaining
        for unit, unit_s in (("h", 3600), ("min", 60)):
            if seconds >= 1.5 * unit_s:
                return f"{seconds / unit_s:.{int(unit == 'h')}f} {unit} left"
        return f"{seconds:.0f} s left"

    # ---- the panel ----

    def _start_panel(self) -> "Live":
        from rich.console import Console as Terminal
        from rich.console import Group
        from rich.live import Live

        # The terminal itself wraps messages, so a command in one can be copied.
        terminal = Terminal(stderr=True, highlight=False, soft_wrap=True)
        live = Live(
            # The empty line keeps the cursor below the panel, where output continues if the process is killed.
            get_renderable=lambda: self.panel() if self._closed.is_set() else Group(self.panel(), ""),
            console=terminal,
            refresh_per_second=REFRESHES_PER_S,
            redirect_stdout=sys.stdout.isatty(),  # output to a file stays there
        )
        live.start()
        terminal.show_cursor(True)  # a killed run cannot restore it
        return live

    def panel(self) -> "Panel":
        """Returns the panel with the current numbers."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now, steps, scores = time.monotonic(), self._steps, self._scores or {}
        self._recent.append((now, steps))
        (before, steps_before), part = self._recent[0], min(steps / self._total_steps, 1)
        speed = (steps - steps_before) / max(now - before, 1e-9)
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        table.add_row("agent steps", f"{steps:,} of {self._total_steps:,}", ProgressBar(total=1, completed=part))
        table.add_row("steps per second", f"{speed:,.0f}")
        table.add_row("time left", self._time_left(now).removesuffix(" left"))
        shown = {name: f"{score:,.1f}" for name, score in scores.items()}
        table.add_row("training score", shown.get("training score", "-"), sparkline(self._curve, 30))
        table.add_row("evaluation score", shown.get("evaluation score", "-"))
        names = sorted(self._shares, key=lambda name: name not in ("sample", "learn"))  # the others are parts of these
        shares = "  ".join(f"{name} {self._shares[name]:.0%}" for name in names)
        time_row = Text(f"{'time':18}{shares}", no_wrap=True, overflow="ellipsis")
        return Panel(Group(table, time_row), border_style="dim")


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws numbers as a line of at most width characters; the last number is always shown."""
    first = len(values) - 1
    drawn = [values[first - round(first * i / (width - 1))] for i in range(width)] if first >= width else values[::-1]
    low, high = min(drawn, default=0), max(drawn, default=0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((value - low) * scale)] for value in reversed(drawn))
