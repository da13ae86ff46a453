"""What a run reports while it trains: progress.csv, TensorBoard, the console, and summary.json at the end."""

import contextlib
import csv
import io
import json
import math
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from accel_rl.errors import RunError
from accel_rl.rollout import Game
from accel_rl.training.atomic import write_file
from accel_rl.training.console import Console
from accel_rl.training.log import goes_on_without
from accel_rl.training.metrics import IntervalMetrics, means, shares

NUM_RECENT_GAMES = 100  # over which scores are averaged (Stooke & Abbeel, section 5)


class Progress:
    """Writes rows of metrics from the reports of all learners.

    steps: those of the checkpoint that a resumed run continues from; rows beyond it are dropped.
    """

    def __init__(self, folder: Path, steps: int, total_steps: int, use_tensorboard: bool, show: bool):
        self.folder = folder
        self.games: deque[Game] = deque(maxlen=NUM_RECENT_GAMES)
        self.seconds_before = 0.0
        self._started = self._row_started = time.perf_counter()
        self._steps = self._row_steps = steps
        self._first_step = steps
        self._reports: list[IntervalMetrics] = []
        self._table = _Table(folder / "progress.csv", steps)
        self._events = _Events(folder, steps) if use_tensorboard else None
        self._console = Console(steps, total_steps, show)

    @property
    def seconds(self) -> float:
        """Wall time of the whole run, in seconds, including what came before a resume."""
        return self.seconds_before + time.perf_counter() - self._started

    def advance(self, steps: int) -> None:
        """Takes in that the run has made this number of agent steps."""
        self._console.advance(steps)
        self._steps = steps

    def merge(self, reports: list[IntervalMetrics]) -> None:
        """Takes what learners have reported into the next row."""
        for report in reports:
            self.games.extend(report.games)
        self._reports += reports

    def scores(self) -> dict[str, float]:
        """Returns mean score (raw) and length of the last NUM_RECENT_GAMES games; NaN while no game has finished."""
        if not self.games:
            return {"rollout/ep_rew_mean": math.nan, "rollout/ep_len_mean": math.nan}
        return {
            "rollout/ep_rew_mean": fmean(game.score for game in self.games),
            "rollout/ep_len_mean": fmean(game.length for game in self.games),
        }

    def write_row(self, **more: float) -> dict[str, float]:
        """Writes one row about everything since the last one, and returns it; more: further metrics, by name."""
        now = time.perf_counter()
        wall, num_steps = max(now - self._row_started, 1e-9), self._steps - self._row_steps
        reports, self._reports = self._reports, []
        row = {
            "time/total_timesteps": self._steps,
            "time/time_elapsed": round(self.seconds, 3),
            "time/fps": round(num_steps / wall, 1),
            **self.scores(),
            **{f"time/{name}_share": round(share, 4) for name, share in shares(reports).items()},
            **{f"train/{name}": mean for name, mean in means(reports).items()},
            **{name: sum(r.counts[name] for r in reports if name in r.counts) for r in reports for name in r.counts},
            **more,
        }
        if moved := sum(report.bytes_moved for report in reports):
            row["time/gpu_bytes_per_step"] = round(moved / max(num_steps, 1), 1)
        self._row_started, self._row_steps = now, self._steps
        row = {name: value for name, value in row.items() if not math.isnan(value)}
        self._table.write(row)
        if self._events:
            self._events.write(row, self._steps)
        self._console.show_row(row, self._table.last("eval/mean_reward"))
        return row

    def exclude(self, seconds: float) -> None:
        """Leaves an interruption, such as an evaluation, out of the next row's rates."""
        self._row_started += seconds

    def write_summary(self, algo: str, env: str, seed: int) -> dict[str, Any]:
        """Writes summary.json and returns its content; scores are null while no game has finished.

        Raises RunError if the disk refuses."""
        scores = {name.split("/")[1]: None if math.isnan(v) else v for name, v in self.scores().items()}
        elapsed = time.perf_counter() - self._started
        summary = {
            "algo": algo,
            "env": env,
            "seed": seed,
            "total_timesteps": self._steps,
            "time_elapsed": round(self.seconds, 3),
            "fps": round((self._steps - self._first_step) / elapsed, 1),
            **scores,
            "eval_mean_reward": self._table.last("eval/mean_reward"),
        }
        content = json.dumps(summary, indent=2).encode() + b"\n"
        write_file(self.folder / "summary.json", lambda file: file.write(content), "summary")
        return summary

    def get_state(self) -> dict[str, Any]:
        return {"games": [tuple(game) for game in self.games], "seconds": self.seconds, "reports": self._reports}

    def set_state(self, state: dict[str, Any]) -> None:
        self.games.extend(Game(*game) for game in state["games"])
        self.seconds_before = state["seconds"]
        self._reports = state["reports"]

    def close(self) -> None:
        self._console.close()
        if self._events:
            self._events.close()


class _Table:
    """A CSV file; a new column rewrites it, as does the first row that the disk takes after it has refused some."""

    def __init__(self, path: Path, steps: int):
        self._path = path
        self._rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="") as file:  # its last line may be half written
                complete = [row for row in csv.DictReader(file) if None not in row.values()]
            self._rows = [row for row in complete if float(row["time/total_timesteps"]) <= steps]
        self._columns = list(self._rows[0]) if self._rows else []
        self._is_whole, self._has_failed = True, False
        if self._columns:
            self._store(is_appended=False)

    def write(self, row: dict[str, float]) -> None:
        self._rows.append({name: str(value) for name, value in row.items()})
        new = [name for name in row if name not in self._columns]
        self._columns += new
        self._store(is_appended=self._is_whole and not new)

    def last(self, name: str) -> float | None:
        """Returns the newest number in a column; None if there is none."""
        return next((float(row[name]) for row in reversed(self._rows) if row.get(name)), None)

    def _store(self, is_appended: bool) -> None:
        """Writes the last row, or all of them in one go."""
        self._is_whole = False
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        try:
            if is_appended:
                writer.writerow(self._rows[-1])
                with self._path.open("a", newline="") as file:
                    file.write(text.getvalue())
            else:
                writer.writeheader()
                writer.writerows(self._rows)
                write_file(self._path, lambda file: file.write(text.getvalue().encode()), "table")
            self._is_whole = True
        except (OSError, RunError) as error:
            if not self._has_failed:
                self._has_failed = True
                goes_on_without("rows of progress.csv", error.__cause__ or error)


class _Events:
    """TensorBoard's file, if it is installed, as long as the disk takes it."""

    def __init__(self, folder: Path, steps: int):
        self._writer: Any = None
        with self._until_refused(), contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=steps or None)

    def write(self, row: dict[str, float], steps: int) -> None:
        with self._until_refused():
            for name, value in row.items() if self._writer else ():
                self._writer.add_scalar(name, value, steps)

    def close(self) -> None:
        with self._until_refused():
            if self._writer:
                self._writer.close()

    @contextlib.contextmanager
    def _until_refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            goes_on_without("TensorBoard's events", error)
