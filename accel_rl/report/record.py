"""Reads a run's record for a page from its folder."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.analysis.plot import Run, read_log
from accel_rl.errors import UsageError

NEEDED = {"algo": str, "env": str, "seed": int, "steps": int}  # settings without which a page could not name a run
BEGINS = re.compile(r"\d{4}-\d\d-\d\d ")  # the start of a message in log.txt; other lines continue it
# The files that are read in a run's folder.
FILES = ("config.yaml", "progress.csv", "command.txt", "final.json", "machine.json", "log.txt", "video.mp4")
WARNS = re.compile(r"\S+ \S+ (WARNING|ERROR|CRITICAL) ")


@dataclass(frozen=True)
class RunRecord:
    """A run: its settings and log, and other files of its folder.

    final: final.json, machine: machine.json; empty if there is none. warnings: those of log.txt, and errors."""

    folder: Path
    run: Run
    command: str
    final: dict[str, Any]
    machine: dict[str, Any]
    warnings: list[str]
    video: Path | None

    @property
    def env(self) -> str:
        return str(self.run.config["env"])

    @property
    def steps(self) -> int:
        """Agent steps up to the last row of the log."""
        return int(self.last("time/total_timesteps") or 0)

    @property
    def seconds(self) -> float:
        """Wall time up to the last row of the log."""
        return self.last("time/time_elapsed") or 0.0

    @property
    def is_finished(self) -> bool:
        return self.steps >= int(self.run.config["steps"])

    def last(self, column: str) -> float | None:
        """Returns the last number of a column of the log."""
        series = self.run.columns.get(column)
        return float(series.value[-1]) if series and series.value.size else None


def read_record(folder: Path) -> RunRecord:
    """Reads a run's folder. Raises UsageError if it holds no run, or a damaged one."""
    run = read_log(folder)
    if wrong := [name for name, kind in NEEDED.items() if not isinstance(run.config.get(name), kind)]:
        raise UsageError(f"{folder / 'config.yaml'} is not a run's: {', '.join(wrong)} are missing or of other types")
    if "time/total_timesteps" not in run.columns:
        raise UsageError(f"{folder / 'progress.csv'} is not a run's: it has no column time/total_timesteps")
    video = folder / "video.mp4"
    return RunRecord(
        folder,
        run,
        _text(folder / "command.txt").strip(),
        _json(folder / "final.json", "mean_reward", "std_reward", "episodes"),
        _json(folder / "machine.json"),
        warnings(_text(folder / "log.txt").splitlines()),
        video if video.is_file() else None,
    )


def find_records(paths: Sequence[Path], read: Callable[[Path], RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Reads the runs in these folders, each once; returns them, and why it could not read runs of an experiment.

    Raises UsageError for a folder that holds neither a run nor runs, and for runs of several environments outside of an
    experiment."""
    records: dict[Path, RunRecord] = {}
    problems = []
    inside = {
        path: [] if (path / "config.yaml").exists() else sorted(file.parent for file in path.glob("*/config.yaml"))
        for path in paths
    }
    for path, folders in inside.items():
        for folder in folders or [path]:
            try:
                records[folder.resolve()] = read(folder)
            except UsageError as error:
                if not folders:
                    raise
                problems.append(str(error))
    if not records:
        raise UsageError(problems[0])
    envs = sorted({record.env for record in records.values()})
    if len(envs) > 1 and not any(inside.values()):
        raise UsageError(f"these are runs of {' and '.join(envs)}: name those of one, or an experiment's folder")
    return list(records.values()), problems


def warnings(lines: Iterable[str]) -> list[str]:
    """Returns the warnings and errors of a log, each with all of its lines."""
    messages: list[str] = []
    for line in lines:
        if BEGINS.match(line) or not messages:
            messages.append(line)
        else:
            messages[-1] += f"\n{line}"
    return [message for message in messages if WARNS.match(message)]


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def _json(file: Path, *names: str) -> dict[str, Any]:
    """Reads a JSON file; {} if it is missing. Raises UsageError if it is damaged or lacks one of these numbers."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{file} is damaged: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(name), int | float) for name in names):
        raise UsageError(f"{file} is damaged: it must hold {', '.join(names) or 'a mapping'}")
    return content
