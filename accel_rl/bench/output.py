"""Which cores a benchmark uses, and where its figures go."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.hardware.topology import available_cpus, physical_cores


def first_cores(num_cores: int | None) -> list[list[int]]:
    """The first of the cores that this process may use (None: all of them), each a list of its processors.

    Raises UsageError if there are not so many."""
    cores = physical_cores(available_cpus())
    if num_cores is not None and not 1 <= num_cores <= len(cores):
        raise UsageError(f"cores={num_cores} must be from 1 to {len(cores)}, the cores that this process may use")
    return cores[:num_cores]


def shown(options: Any) -> dict[str, Any]:
    """A benchmark's options as its file has them: without folders of the machine that made it."""
    return {name: None if isinstance(value, Path) else value for name, value in asdict(options).items()}


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
