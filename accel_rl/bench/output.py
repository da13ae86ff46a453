"""Selects the cores of a benchmark, and writes its files."""

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine
from accel_rl.hardware.topology import available_cpus, physical_cores


def first_cores(num_cores: int | None) -> list[list[int]]:
    """Returns the first num_cores of this process's cores (None: all), each a list of its logical CPUs.

    Raises UsageError if there are fewer."""
    cores = physical_cores(available_cpus())
    if num_cores is not None and not 1 <= num_cores <= len(cores):
        raise UsageError(f"cores={num_cores} must be from 1 to {len(cores)}, the cores that this process may use")
    return cores[:num_cores]


def describe_run(benchmark: str, version: int, options: Any) -> dict[str, Any]:
    """Returns the head of a benchmark's JSON: its name, the version of its fields, machine and options.

    options: a dataclass; its paths are left out, since they belong to this machine only."""
    public = {name: None if isinstance(value, Path) else value for name, value in asdict(options).items()}
    return {"benchmark": benchmark, "version": version, "machine": describe_machine(), "options": public}


def figure_path(asked: Path | None, default: Path) -> Path | None:
    """Returns the path of a benchmark's figure, or None without matplotlib.

    Raises UsageError if the user names a figure that cannot be drawn."""
    if find_spec("matplotlib"):
        path = asked or default
        if path.suffix != ".png":
            raise UsageError(f"figure={path} must end in .png")
        return path
    if asked:
        raise UsageError('--figure needs matplotlib: pip install "accel-rl[plot]"')
    print('no figure, since matplotlib is missing: pip install "accel-rl[plot]"', file=sys.stderr)
    return None


def create_parents(*files: Path | None) -> None:
    """Creates the files' folders at the start, so nothing fails after minutes of work.

    Raises UsageError for a file that is a folder."""
    for file in files:
        if file and file.is_dir():
            raise UsageError(f"{file} is a folder; name a file")
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Writes the result if there is a path."""
    if path:
        create_parents(path)
        path.write_text(json.dumps(result, indent=2) + "\n")
