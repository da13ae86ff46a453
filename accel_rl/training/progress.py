"""What a run reports while it trains: progress.csv, TensorBoard, the console, and summary.json at the end."""

import csv
import json
import logging
import math
import os
import time
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any

from accel_rl.rollout import Game
from accel_rl.training.console import Console
from accel_rl.training.metrics import IntervalMetrics, means, shares

logger = logging.getLogger("accel_rl")

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
        self._writer = _tensorboard_writer(folder, steps) if use_tensorboard else None
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
        if self._writer:
            for name, value in row.items():
                self._writer.add_scalar(name, value, self._steps)
        self._console.show_row(row, self._table.last("eval/mean_reward"))
        return row

    def exclude(self, seconds: float) -> None:
        """Leaves an interruption, such as an evaluation, out of the next row's rates."""
        self._row_started += seconds

    def write_summary(self, algo: str, env: str, seed: int) -> dict[str, Any]:
        """Writes summary.json and returns its content; scores are null while no game has finished."""
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
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return summary

    def get_state(self) -> dict[str, Any]:
        return {"games": [tuple(game) for game in self.games], "seconds": self.seconds, "reports": self._reports}

    def set_state(self, state: dict[str, Any]) -> None:
        self.games.extend(Game(*game) for game in state["games"])
        self.seconds_before = state["seconds"]
        self._reports = state["reports"]

    def close(self) -> None:
        self._console.close()
        if self._writer:
            self._writer.close()


class _Table:
    """A CSV file; a new column rewrites it."""

    def __init__(self, path: Path, steps: int):
        self._path = path
        self._rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="") as file:  # its last line may be half written
                complete = [row for row in csv.DictReader(file) if None not in row.values()]
            self._rows = [row for row in complete if float(row["time/total_timesteps"]) <= steps]
        self._columns = list(self._rows[0]) if self._rows else []
        if self._columns:
            self._rewrite()

    def write(self, row: dict[str, float]) -> None:
        self._rows.append({name: str(value) for name, value in row.items()})
        new = [name for name in row if name not in self._columns]
        self._columns += new
        if new:
            self._rewrite()
        else:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(self._rows[-1])

    def last(self, name: str) -> float | None:
        """Returns the newest number in a column; None if there is none."""
        return next((float(row[name]) for row in reversed(self._rows) if row.get(name)), None)

    def _rewrite(self) -> None:
        temporary = self._path.with_suffix(".csv.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(temporary, self._path)  # a run that is killed before this line keeps its rows


def _tensorboard_writer(folder: Path, steps: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=steps or None)
