"""Reports a run's progress: progress.csv, TensorBoard, the console, and summary.json at the end."""

import contextlib
import csv
import io
import itertools
import json
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from accel_rl.errors import RunError, UsageError
from accel_rl.rollout import Game
from accel_rl.run_folder.atomic import write_file
from accel_rl.training.console import Console
from accel_rl.training.log import goes_on_without
from accel_rl.training.metrics import IntervalMetrics, means, shares, sums

NUM_RECENT_GAMES = 100  # scores are means over these (Stooke & Abbeel, section 5)
_numbers = itertools.count()  # numbers TensorBoard's files: their names must differ


class Progress:
    """Writes rows of metrics from the reports of all learners.

    steps: agent steps of the checkpoint that a resumed run continues from; later rows are dropped.
    """

    def __init__(self, folder: Path, steps: int, total_steps: int, use_tensorboard: bool, show: bool):
        self.folder = folder
        self.games: deque[Game] = deque(maxlen=NUM_RECENT_GAMES)
        self.seconds_before = 0.0
        self._started = self._row_started = time.perf_counter()
        self._steps = self._row_steps = steps
        self._first_step = steps
        self._reports: list[IntervalMetrics] = []
        self._wall_s = 0.0  # covered by this session's rows
        self._seconds_for: dict[str, float] = {}  # the same, by purpose
        self._table = _Table(folder / "progress.csv", steps)
        self._events = _Events(folder, steps) if use_tensorboard else None
        self._console = Console(steps, total_steps, show)

    @property
    def seconds(self) -> float:
        """Wall time of the whole run in seconds, its earlier sessions included."""
        return self.seconds_before + time.perf_counter() - self._started

    def advance(self, steps: int) -> None:
        """Updates the number of agent steps that the run has done."""
        self._console.advance(steps)
        self._steps = steps

    def merge(self, reports: list[IntervalMetrics]) -> None:
        """Adds learners' reports to the next row."""
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
        """Writes and returns a row for the time since the last one. more: further metrics, by name."""
        now = time.perf_counter()
        wall, num_steps = max(now - self._row_started, 1e-9), self._steps - self._row_steps
        reports, self._reports = self._reports, []
        parts = shares(reports)
        self._wall_s += wall
        for name, share in parts.items():
            self._seconds_for[name] = self._seconds_for.get(name, 0.0) + share * wall
        row = {
            "time/total_timesteps": self._steps,
            "time/time_elapsed": round(self.seconds, 3),
            "time/fps": round(num_steps / wall, 1) if num_steps else math.nan,
            **self.scores(),
            **{f"time/{name}_share": round(share, 4) for name, share in parts.items()},
            **{f"train/{name}": mean for name, mean in means(reports).items()},
            **sums(reports),
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

    def describe_waits(self) -> str:
        """Describes in a line what waited for what in this session; empty without a GPU or before the first row."""
        if "gpu_wait" not in self._seconds_for:
            return ""
        names = ("action_wait", "gpu_wait", "gpu_idle")
        workers, server, gpu = (f"{100 * self._seconds_for[name] / self._wall_s:.0f} %" for name in names)
        return f"time        simulators wait for actions {workers}, the server for the GPU {server}, GPU idle {gpu}"

    def exclude(self, seconds: float) -> None:
        """Leaves an interruption, such as an evaluation, out of the next row's rates."""
        self._row_started += seconds

    def write_summary(self, algo: str, env: str, seed: int) -> None:
        """Writes summary.json; scores are null while no game has finished.

        Raises RunError if it cannot be written."""
        scores = {name.split("/")[1]: None if math.isnan(v) else v for name, v in self.scores().items()}
        elapsed, num_steps = time.perf_counter() - self._started, self._steps - self._first_step
        summary = {
            "algo": algo,
            "env": env,
            "seed": seed,
            "total_timesteps": self._steps,
            "time_elapsed": round(self.seconds, 3),
            "fps": round(num_steps / elapsed if num_steps else self._steps / max(self.seconds, 1e-9), 1),
            **scores,
            "eval_mean_reward": self._table.last("eval/mean_reward"),
        }
        content = json.dumps(summary, indent=2).encode() + b"\n"
        write_file(self.folder / "summary.json", content, "summary")

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
    """A CSV file. Rows are appended; a new column or a failed write rewrites the whole file.

    Memory holds only the rows that are not written yet."""

    def __init__(self, path: Path, steps: int):
        self._path = path
        try:
            rows = [row for row in self._read(-1) if float(row["time/total_timesteps"]) <= steps]
        except (KeyError, ValueError, csv.Error) as error:
            raise UsageError(f"{path} is damaged ({error}); restore it, or move it away") from None
        self._columns = list(rows[0]) if rows else []
        self._newest = {name: value for row in rows for name, value in row.items() if value}
        self._waiting = rows  # not on the disk yet
        self._size = 0  # bytes of the rows on the disk
        self._is_whole = self._has_failed = False
        if rows:
            self._store(is_appended=False)

    def write(self, row: dict[str, float]) -> None:
        written = {name: str(value) for name, value in row.items()}
        self._newest |= written
        self._waiting.append(written)
        new = [name for name in row if name not in self._columns]
        self._columns += new
        self._store(is_appended=self._is_whole and not new)

    def last(self, name: str) -> float | None:
        """Returns the newest number in a column; None if there is none."""
        return float(self._newest[name]) if name in self._newest else None

    def _read(self, size: int) -> list[dict[str, str]]:
        """Returns the rows in the file's first size bytes (-1: in all of it), without a half-written line."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            text = io.StringIO(file.read(size).decode(), newline="")
        return [row for row in csv.DictReader(text) if None not in row.values()]

    def _store(self, is_appended: bool) -> None:
        """Writes the waiting rows. is_appended: at the file's end; else it replaces the whole file atomically."""
        self._is_whole = False
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        try:
            if not is_appended:
                writer.writeheader()
                writer.writerows(self._read(self._size))
            writer.writerows(self._waiting)
            content = text.getvalue().encode()
            if is_appended:
                with self._path.open("ab") as file:
                    file.write(content)
            else:
                write_file(self._path, content, "table")
            self._size = len(content) + (self._size if is_appended else 0)
            self._waiting = []
            self._is_whole = True
        except (OSError, RunError) as error:
            if not self._has_failed:
                self._has_failed = True
                goes_on_without("rows of progress.csv", error.__cause__ or error)


class _Events:
    """A TensorBoard event file, if TensorBoard is installed. It ends at the first failed write.

    TensorBoard's writer uses a thread, prints a traceback on a full disk, and waits if the clock is set back."""

    def __init__(self, folder: Path, steps: int):
        self._file: BinaryIO | None = None
        with self._until_refused(), contextlib.suppress(ImportError):
            from tensorboard.compat.proto import event_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter

            self._event, self._records = event_pb2.Event, RecordWriter
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
            self._file = (folder / name).open("wb")
            self._append(file_version="brain.Event:2")
            if steps:  # from this step on, TensorBoard drops what an earlier session has written
                self._append(step=steps + 1, session_log={"status": "START"})

    def write(self, row: dict[str, float], steps: int) -> None:
        with self._until_refused():
            scalars = [{"tag": name, "simple_value": float(value)} for name, value in row.items()]
            self._append(step=steps, summary={"value": scalars})

    def close(self) -> None:
        with self._until_refused():
            if self._file:
                self._file.close()

    def _append(self, **event: Any) -> None:
        if self._file:
            self._records(self._file).write(self._event(wall_time=time.time(), **event).SerializeToString())
            self._file.flush()

    @contextlib.contextmanager
    def _until_refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):  # it retries what it could not write
                if self._file:
                    self._file.close()
            self._file = None
            goes_on_without("TensorBoard's events", error)
