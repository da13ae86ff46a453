"""Finds the runs below a folder and their states. Links that lead out of the folder are not followed."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from accel_rl.errors import UsageError
from accel_rl.report.record import FILES, RunRecord, read_record
from accel_rl.run_folder.lock import LOCK, is_being_written

MAX_CACHED = 2**16  # summaries kept in memory

Stamp = tuple[tuple[str, int, int], ...]
"""Names, times and sizes of the files that a page is made of, and which runs are running."""


@dataclass(frozen=True)
class Summary:
    """The list's summary of a run's log, from its last rows."""

    steps: int
    all_steps: int
    is_finished: bool
    training: float | None
    evaluation: float | None
    speed: float | None


@dataclass(frozen=True)
class WatchedRun:
    """A run in the list.

    folder: relative to the watched one. begun_s: the time when its settings were written. age_s: seconds since its log
    was written. summary: None if the run cannot be read; problem then says why."""

    folder: Path
    state: str
    begun_s: float
    age_s: float
    summary: Summary | None
    problem: str


class WatchedRuns:
    """The runs below a folder. Caches a few numbers of each run until its files change: there may be thousands."""

    def __init__(self, root: Path):
        self.root = Path(os.path.realpath(root))
        self._summarize = lru_cache(MAX_CACHED)(self._read_summary)

    def by_folder(self) -> dict[Path, list[WatchedRun]]:
        """Returns the runs by parent folder, the latest first."""
        runs = sorted(map(self._watch, self._find()), key=lambda run: (-run.begun_s, run.folder))
        by_parent: dict[Path, list[WatchedRun]] = {}
        for run in runs:
            by_parent.setdefault(run.folder.parent, []).append(run)
        return by_parent

    def read(self, folder: Path) -> RunRecord:
        """Reads a run. Raises UsageError if it cannot be read, or if its folder is a link to a place outside."""
        for path in (folder, *(folder / name for name in FILES)):
            if not self.has(path):
                raise UsageError(f"{path} is a link that leads out of {self.root}")
        try:
            return read_record(folder)
        except OSError as error:  # it may have just been removed
            raise UsageError(f"cannot read {folder}: {error.strerror}") from None

    def has(self, path: Path) -> bool:
        """Tells whether a path is in the folder once its links are followed."""
        return Path(os.path.realpath(path)).is_relative_to(self.root)

    def _find(self) -> Iterator[Path]:
        """Finds the folders of runs, and links out of the folder, which may be runs."""
        for name, folders, files in os.walk(self.root):  # does not follow links
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            if {"config.yaml", "progress.csv"} & set(files):
                yield Path(name)
            links = (Path(name, folder) for folder in folders if os.path.islink(os.path.join(name, folder)))
            yield from (link for link in links if not self.has(link))

    def _read_summary(self, folder: Path, _: Stamp) -> tuple[Summary | None, str]:
        try:
            record = self.read(folder)
        except UsageError as error:
            return None, str(error)
        columns = ("rollout/ep_rew_mean", "eval/mean_reward", "time/fps")
        numbers = (record.last(column) for column in columns)
        return Summary(record.steps, int(record.run.config["steps"]), record.is_finished, *numbers), ""

    def _watch(self, folder: Path) -> WatchedRun:
        files = _stamp(folder, ["config.yaml", "progress.csv"])
        summary, problem = self._summarize(folder, files)
        written_s = {name: time_ns / 1e9 for name, time_ns, _ in files}
        is_running = self.has(folder / LOCK) and is_being_written(folder)
        if is_running and "progress.csv" not in written_s:
            state, problem = "running", "no row yet"
        elif summary is None:
            state = "cannot be read"
        else:
            state = "running" if is_running else "finished" if summary.is_finished else "stopped"
        age_s = max(0.0, time.time() - written_s.get("progress.csv", 0.0))
        return WatchedRun(
            folder.relative_to(self.root), state, written_s.get("config.yaml", 0.0), age_s, summary, problem
        )


def stamp(folder: Path) -> Stamp:
    """Returns a stamp that changes when a run in this folder, or right below it, writes or ends."""
    try:
        below = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        below = []
    runs = ["", *sorted(below)]
    running = tuple((run, 1, 0) for run in runs if is_being_written(folder / run))  # kill -9 changes no file
    return running + _stamp(folder, [os.path.join(run, file) for run in runs for file in FILES])


def _stamp(folder: Path, names: list[str]) -> Stamp:
    stamps = []
    for name in names:
        try:
            stat = os.stat(os.path.join(folder, name))
        except OSError:  # it is not there yet, or was removed
            continue
        stamps.append((name, stat.st_mtime_ns, stat.st_size))
    return tuple(stamps)


def address(folder: Path) -> str:
    """Encodes a path below the folder for a link, even if the path is not in UTF-8."""
    return quote(os.fsencode(folder))
