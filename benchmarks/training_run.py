"""Ordinary runs of `accel-rl train` as contestants, with steps read from progress.csv."""

import csv
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_rl.bench.timing import Shares
from process_tree import ProcessTree

FOREVER = 10**9
START_TIMEOUT_S, ROW_TIMEOUT_S = 300.0, 120.0
POLL_S = 0.003
COMMON = {
    "env": "pong",
    "device": "cpu",
    "seed": 0,
    "eval-interval-steps": 0,
    "checkpoint-interval-steps": FOREVER,
    "decorrelation-steps": 100,  # the presets' numbers cost seconds at the start
    "env-timeout-s": 10**6,  # a stopped run must not consider its workers hung
}

Row = dict[str, str]


class ProgressFile:
    """Reads the last row of a run's progress.csv."""

    def __init__(self, tree: ProcessTree, path: Path):
        self._tree, self._path = tree, path
        self._seen: tuple[int, int] | None = None

    def skip(self) -> None:
        """Makes `wait_for_row` wait for a row written from now on."""
        self._seen = self._version()

    def wait_for_row(self, timeout_s: float) -> Row:
        """Waits for a row that is newer than the last one seen; returns the last row by column.

        Raises RunError if the program ends first, or takes too long."""
        deadline = time.perf_counter() + timeout_s
        while True:
            if (version := self._version()) != self._seen:
                self._seen = version
                if row := self._last_row():
                    return row
            if self._tree.process.poll() is not None:
                raise self._tree.error("has ended")
            if time.perf_counter() > deadline:
                raise self._tree.error(f"has written no row for {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def _version(self) -> tuple[int, int] | None:
        """Returns a value that changes with every row, without reading the file."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size

    def _last_row(self) -> Row | None:
        lines = self._path.read_text().splitlines(keepends=True)
        if len(lines) < 2 or not lines[-1].endswith("\n"):
            return None
        return next(csv.DictReader([lines[0], lines[-1]]))


def steps_of(row: Row) -> int:
    """Returns the number of agent steps at a row."""
    return int(float(row["time/total_timesteps"]))


class TrainingRun:
    """A run of `accel-rl train` that is stopped between its turns.

    environment: variables of its process. settings: flags besides COMMON. first_turn_steps: turns begin at the first
    row with at least this many steps. shares: of wall time, from a turn's last row; a turn should have several rows."""

    def __init__(
        self, name: str, environment: Mapping[str, str], settings: Mapping[str, Any], first_turn_steps: int = 0
    ):
        self.name, self.shares = name, Shares()
        self._tree, self._progress = start_training(name, environment, {**settings, "steps": FOREVER})
        try:
            self._steps = -1
            while self._steps < first_turn_steps:
                self._steps = steps_of(self._progress.wait_for_row(START_TIMEOUT_S))
            self._tree.pause()
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> float:
        """Takes a turn; returns steps/s."""
        before, start = self._steps, time.perf_counter()
        self._tree.resume()
        time.sleep(seconds)
        self._progress.skip()
        row = self._progress.wait_for_row(ROW_TIMEOUT_S)
        wall = time.perf_counter() - start
        self._tree.pause()
        self._steps = steps_of(row)
        shares = {name: value for name, value in row.items() if name.endswith("_share") and value}
        self.shares = {name.removeprefix("time/").removesuffix("_share"): float(v) for name, v in shares.items()}
        return (self._steps - before) / wall

    def close(self) -> None:
        self._tree.kill()


def start_training(
    name: str, environment: Mapping[str, str], settings: Mapping[str, Any]
) -> tuple[ProcessTree, ProgressFile]:
    """Starts `accel-rl train` with these flags and those of COMMON."""
    flags = [f"--{flag}={value}" for flag, value in {**COMMON, **settings, "out": "run"}.items()]
    command = [sys.executable, "-m", "accel_rl", "train", *flags, "--no-tensorboard"]
    tree = ProcessTree(f"the run of {name}", command, environment)
    return tree, ProgressFile(tree, tree.folder / "run" / "progress.csv")
