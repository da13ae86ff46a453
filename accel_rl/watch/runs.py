"""The runs below a folder, and how each is doing."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from accel_rl.errors import UsageError
from accel_rl.report.record import RunRecord, read_record

Stamp = tuple[tuple[str, int, int], ...]
"""Names, times and sizes of the files that a page is made of."""


@dataclass(frozen=True)
class WatchedRun:
    """A run in the list. folder: below the one that is watched. record: None, and problem says why, if it cannot be
    read. age_s: seconds since its log was written."""

    folder: Path
    state: str
    age_s: float
    record: RunRecord | None
    problem: str = ""


def list_runs(root: Path) -> dict[Path, list[WatchedRun]]:
    """Returns the runs below a folder by the folder they lie in, those that were written to last first."""
    runs = sorted((_watch(root, folder) for folder in _find(root)), key=lambda run: run.age_s)
    by_parent: dict[Path, list[WatchedRun]] = {}
    for run in runs:
        by_parent.setdefault(run.folder.parent, []).append(run)
    return by_parent


def stamp(folder: Path) -> Stamp:
    """Returns what differs once a run in this folder, or one right below it, has written."""
    files = [file for pattern in ("*", "*/*") for file in folder.glob(pattern) if file.is_file()]
    stats = [(str(file), file.stat()) for file in files]
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats))


def _find(root: Path) -> Iterator[Path]:
    for folder, _, files in os.walk(root):  # does not follow links
        if "config.yaml" in files and "progress.csv" in files:
            yield Path(folder)


def _watch(root: Path, folder: Path) -> WatchedRun:
    age_s = time.time() - (folder / "progress.csv").stat().st_mtime
    try:
        record = _read(folder, stamp(folder))
    except UsageError as error:
        return WatchedRun(folder.relative_to(root), "cannot be read", age_s, None, str(error))
    state = "running" if record.is_running else "finished" if record.is_finished else "stopped"
    return WatchedRun(folder.relative_to(root), state, age_s, record)


@lru_cache(maxsize=2000)
def _read(folder: Path, _: Stamp) -> RunRecord:
    return read_record(folder)
