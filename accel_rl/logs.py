"""What a run tells while it goes on: progress.csv, TensorBoard, log.txt, and the progress bar."""

import csv
import json
import logging
import math
import os
import shlex
import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor
from tqdm import tqdm

from accel_rl.samplers.rollout import Game
from accel_rl.statistics import Statistics

logger = logging.getLogger("accel_rl")

NUM_RECENT_GAMES = 100  # over which scores are averaged (Stooke & Abbeel, section 5)


@dataclass
class Report:
    """What one learner has done between two rows: finished games, numbers of updates by name, seconds of `wall` time
    by what they went for, bytes from and to a GPU, other metrics."""

    games: list[Game]
    numbers: dict[str, list[float]]
    seconds: dict[str, float]
    wall: float
    bytes_moved: int
    more: dict[str, float]


class Tally:
    """Gathers what one learner does, until it is reported."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        self._began = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        self._games: list[Game] = []
        self._seconds: dict[str, float] = {}
        self._bytes_moved = 0

    def add(
        self, steps: int, games: list[Game], stats: list[dict[str, Tensor]], seconds: dict[str, float], moved: int = 0
    ) -> None:
        """One rollout and what was learned meanwhile; seconds: wall time by purpose; moved: bytes from and to a GPU."""
        self._games.extend(games)
        for each in stats:
            self.statistics.add(steps, each)
        self._bytes_moved += moved
        self.add_seconds(seconds)

    def add_seconds(self, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def exclude(self, seconds: float) -> None:
        """Takes an interruption (an evaluation) out of the wall time."""
        self._began += seconds

    def take(self, more: dict[str, float]) -> Report:
        """All since the last time; for which statistics leave the device."""
        now = time.perf_counter()
        wall = max(now - self._began, 1e-9)
        report = Report(self._games, self.statistics.take(), self._seconds, wall, self._bytes_moved, more)
        self._began = now
        self._clear()
        return report

    def get_state(self) -> dict[str, Any]:
        return {"games": [tuple(game) for game in self._games], "statistics": self.statistics.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._games = [Game(*game) for game in state["games"]]
        self.statistics.set_state(state["statistics"])


class Progress:
    """Writes the rows, from what all learners report.

    steps: what a resumed run has behind it. Rows beyond its checkpoint are dropped.
    """

    def __init__(self, folder: Path, steps: int, total_steps: int, use_tensorboard: bool, show: bool):
        self.folder = folder
        self.games: deque[Game] = deque(maxlen=NUM_RECENT_GAMES)
        self.seconds_before = 0.0
        self._started = self._row_started = time.perf_counter()
        self._steps = self._row_steps = steps
        self._first_step = steps
        self._reports: list[Report] = []
        self._table = _Table(folder / "progress.csv", steps)
        self._writer = _tensorboard_writer(folder, steps) if use_tensorboard else None
        self._show = show
        self._bar = tqdm(
            total=total_steps,
            initial=steps,
            unit="step",
            unit_scale=True,
            dynamic_ncols=True,
            smoothing=0.05,
            disable=not (show and sys.stderr.isatty()),
        )

    @property
    def seconds(self) -> float:
        """Wall time of the whole run."""
        return self.seconds_before + time.perf_counter() - self._started

    def advance(self, steps: int) -> None:
        """The run is at so many agent steps."""
        self._bar.update(steps - self._steps)
        self._steps = steps

    def take_in(self, reports: list[Report]) -> None:
        """What learners have reported, for the next row."""
        for report in reports:
            self.games.extend(report.games)
        self._reports += reports

    def scores(self) -> dict[str, float]:
        """Means over the last games, raw score; NaN while no game has finished."""
        if not self.games:
            return {"rollout/ep_rew_mean": math.nan, "rollout/ep_len_mean": math.nan}
        return {
            "rollout/ep_rew_mean": fmean(game.score for game in self.games),
            "rollout/ep_len_mean": fmean(game.length for game in self.games),
        }

    def write_row(self, **more: float) -> None:
        """One row of everything since the last one."""
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
            **{name: sum(r.more[name] for r in reports if name in r.more) for r in reports for name in r.more},
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
        score = row.get("rollout/ep_rew_mean", math.nan)
        self._bar.set_postfix_str(f"score {score:.1f}" if self.games else "no game finished yet")
        if self._show and self._bar.disable:
            games = f"score {score:.1f}" if self.games else "no game finished yet"
            tqdm.write(f"{self._steps:>10,} steps  {row['time/fps']:>7,.0f} steps/s  {games}", file=sys.stderr)

    def exclude(self, seconds: float) -> None:
        """Takes an interruption (an evaluation) out of the next row's rate."""
        self._row_started += seconds

    def write_summary(self, algo: str, env: str, seed: int) -> dict[str, Any]:
        """summary.json, which it also returns; null while no game has finished."""
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
        self._bar.close()
        if self._writer:
            self._writer.close()


def means(reports: list[Report]) -> dict[str, float]:
    """Of each statistic, over the updates of all learners."""
    numbers: dict[str, list[float]] = {}
    for report in reports:
        for name, values in report.numbers.items():
            numbers.setdefault(name, []).extend(values)
    return {name: math.fsum(values) / len(values) for name, values in numbers.items() if values}


def shares(reports: list[Report]) -> dict[str, float]:
    """Of the learners' wall time, by what it went for: their mean.

    "exchange" is the time of the learner that waits least, since it comes last; what others have beyond that is
    "straggler", the wait for it."""
    names = {name: None for report in reports for name in report.seconds}
    parts = {name: [report.seconds.get(name, 0.0) / report.wall for report in reports] for name in names}
    found = {name: fmean(values) for name, values in parts.items()}
    if len(exchange := parts.get("exchange", [])) > 1:
        found |= {"exchange": min(exchange), "straggler": fmean(exchange) - min(exchange)}
    return found


class _Table:
    """A CSV file whose columns may grow; a new column rewrites it."""

    def __init__(self, path: Path, steps: int):
        self._path = path
        self._rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="") as file:  # whose last line may be half written
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

    def _rewrite(self) -> None:
        temporary = self._path.with_suffix(".csv.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(temporary, self._path)  # a run that is killed here keeps its rows


def _tensorboard_writer(folder: Path, steps: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=steps or None)


class _ConsoleHandler(logging.Handler):
    """Lines that do not tear the progress bar. Errors are left to whoever catches them."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            tqdm.write(self.format(record), file=sys.stderr)


def command() -> str:
    """How the user can call this program again: by name if a shell would find it, else by where it is."""
    if shutil.which("accel-rl"):
        return "accel-rl"
    script = Path(sys.executable).with_name("accel-rl")
    shown = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.quote(str(shown)) if script.exists() else f"{shlex.quote(sys.executable)} -m accel_rl"


def open_log(folder: Path, show: bool, rank: int = 0) -> list[logging.Handler]:
    """Sends the framework's messages to log.txt and, with show, to the console; undo with close_log.

    rank: of the learner that speaks; of others than the first, warnings and what is worse."""
    folder.mkdir(parents=True, exist_ok=True)  # of a learner on another machine
    file = logging.FileHandler(folder / "log.txt")
    speaker = f" learner {rank}:" if rank else ""
    file.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s{speaker} %(message)s"))
    handlers: list[logging.Handler] = [file, *([_ConsoleHandler()] if show else [])]
    for handler in handlers:
        handler.setLevel(logging.WARNING if rank else logging.INFO)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handlers


def close_log(handlers: list[logging.Handler]) -> None:
    for handler in handlers:
        logger.removeHandler(handler)
        handler.close()
