"""The options of `accel-rl bench emulator`. The command line imports this module for every command: it stays light."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError, unknown

PARTS = ("raw", "steps", "vector", "sampler", "python", "starts")
DEFAULT_PARTS = PARTS[:-1]


@dataclass(frozen=True)
class EmulatorOptions:
    """Options; HELP says what each one is and what None stands for. Raises UsageError for a value out of range."""

    games: Sequence[str] | None = None
    parts: Sequence[str] | None = None
    num_envs: int = 32
    cores: int | None = None
    seconds: float = 0.1
    rounds: int | None = None
    full: bool = False
    json: Path | None = None
    figure: Path | None = None

    def __post_init__(self) -> None:
        for name in ("num_envs", "cores", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} must be at least 1")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        for part in self.parts or ():
            if part not in PARTS:
                raise unknown("part", part, PARTS)

    @property
    def chosen_parts(self) -> Sequence[str]:
        """Returns the parts that are measured."""
        return self.parts or (PARTS if self.full else DEFAULT_PARTS)


HELP: dict[str, str] = {
    "games": "games, named as in ale-py (ten on one core; three of them on all cores)",
    "parts": "what to measure: raw (frames), steps (of an agent), vector (environments), sampler, python (time per "
    "step), starts (the default leaves these out)",
    "num_envs": "environments of `vector` (32)",
    "cores": "use only the first N of this process's cores (all)",
    "seconds": "length of a turn on one core, in seconds; on all cores it is three times as long (0.1)",
    "rounds": "rounds of each comparison (as many as fit into 4 minutes in all, or 20 with --full)",
    "full": "20 rounds, `vector` also at half size, and the starts: how long they take, and how much memory",
    "json": "write all figures to FILE",
    "figure": "draw the figure into FILE (results/emulator.png)",
}


def add_emulator_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one argument for each field of EmulatorOptions."""
    count: dict[str, Any] = {"type": int, "metavar": "N"}
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    kinds: dict[str, dict[str, Any]] = {
        "games": {"nargs": "+", "metavar": "GAME"},
        "parts": {"nargs": "+", "metavar": "PART"},
        "num_envs": count,
        "cores": count,
        "seconds": {"type": float, "metavar": "S"},
        "rounds": count,
        "full": {"action": "store_true"},
        "json": file,
        "figure": file,
    }
    for field in fields(EmulatorOptions):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, default=field.default, help=HELP[field.name], **kinds[field.name])
