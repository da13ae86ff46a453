"""What the console shows of a run: a bar in a terminal; elsewhere a line for each row of the log, and after EVERY_S
seconds without one, so that nobody wonders whether a run is alive."""

import sys
import threading
import time

from tqdm import tqdm

EVERY_S = 30.0


class Console:
    """Shows agent steps, speed, scores and the time that is left. Use it from one thread.

    steps: those of the checkpoint that a resumed run continues from."""

    def __init__(self, steps: int, total_steps: int, show: bool):
        self._first_step = self._steps = self._shown_steps = steps
        self._total_steps = total_steps
        self._started = self._shown = time.monotonic()
        self._scores = "no game finished yet"
        self._bar = tqdm(
            total=total_steps,
            initial=steps,
            unit="step",
            unit_scale=True,
            dynamic_ncols=True,
            smoothing=0.05,
            disable=not (show and sys.stderr.isatty()),
        )
        self._has_lines, self._closed = show and self._bar.disable, threading.Event()
        self._thread = threading.Thread(target=self._show_regularly, name="console", daemon=True)
        if self._has_lines:
            self._thread.start()

    def advance(self, steps: int) -> None:
        """Takes in that the run has made this number of agent steps."""
        self._bar.update(steps - self._steps)
        self._steps = steps

    def show_scores(self, training: float | None, evaluation: float | None) -> None:
        """Shows the mean score of the last training games and of the last evaluation; None: there are none yet."""
        named = {"training score": training, "evaluation score": evaluation}
        known = [f"{name} {score:.1f}" for name, score in named.items() if score is not None]
        self._scores = "  ".join(known) or "no game finished yet"
        self._bar.set_postfix_str(self._scores)
        if self._has_lines:
            self._show_line()

    def close(self) -> None:
        self._bar.close()
        self._closed.set()
        if self._has_lines:
            self._thread.join()

    def _show_regularly(self) -> None:
        while not self._closed.wait(self._shown + EVERY_S - time.monotonic()):
            if time.monotonic() - self._shown >= EVERY_S:
                self._show_line()

    def _show_line(self) -> None:
        now, steps = time.monotonic(), self._steps
        speed = (steps - self._shown_steps) / max(now - self._shown, 1e-9)
        self._shown, self._shown_steps = now, steps
        line = f"{steps:>10,} steps  {speed:>7,.0f} steps/s  {self._scores:<20}  {self._time_left(now)}"
        tqdm.write(line.rstrip(), file=sys.stderr)

    def _time_left(self, now: float) -> str:
        """Returns how long the rest takes at the mean speed of this session, evaluations included."""
        done, remaining = self._steps - self._first_step, self._total_steps - self._steps
        if not done or remaining <= 0:
            return ""
        seconds = (now - self._started) / done * remaining
        for unit, unit_s in (("h", 3600), ("min", 60)):
            if seconds >= 1.5 * unit_s:
                return f"{seconds / unit_s:.{int(unit == 'h')}f} {unit} left"
        return f"{seconds:.0f} s left"
