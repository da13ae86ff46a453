"""The options of `accel-rl bench`, and how a command declares its options as fields.

Every command imports this module, so its imports must be light."""

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError


def option(default: Any, help_text: str, **argument: Any) -> Any:
    """Returns the field of an option: its default, its help, and other arguments of `add_argument`."""
    return field(default=default, metadata={"help": help_text, **argument})


def _count(default: int | None, help_text: str) -> Any:
    return option(default, help_text, type=int, metavar="N")


def switch(help_text: str) -> Any:
    return option(False, help_text, action="store_true")


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Adds one argument for each field that is an `option` or a `switch`."""
    for each in fields(options):
        if each.metadata:
            parser.add_argument(f"--{each.name.replace('_', '-')}", default=each.default, **each.metadata)


@dataclass(frozen=True)
class SamplingOptions:
    """Options of `accel-rl bench sampling`. Raises UsageError for a value out of range."""

    env: str = option("pong", "Atari game (pong)", metavar="ENV")
    env_preset: str = option("stooke", "frames and episodes: stooke, dqn84 or v5 (stooke)", metavar="PRESET")
    simulator: str = option(
        "auto", "native, ale, or auto: native for games that it plays exactly (auto)", metavar="SIMULATOR"
    )
    cores: int | None = _count(None, "use only the first N of this process's cores (all)")
    envs_per_core: int = _count(8, "environments per core in the comparison (8)")
    workers: int | None = _count(
        None, "simulator processes, where the environments divide evenly (one per logical CPU)"
    )
    horizon: int = _count(64, "steps per rollout without a barrier (64)")
    seconds: float = option(1.0, "length of a turn, in seconds (1.0)", type=float, metavar="S")
    rounds: int | None = _count(None, "rounds of each comparison (as many as fit into 4 minutes, or 20 with --full)")
    device: str | None = option(
        None,
        "where the network of table and figure runs: cpu, cuda, cuda:1 ... (the first GPU, or else cpu)",
        metavar="DEVICE",
    )
    table: bool = option(True, "also measure Table 1 and Figure 2", action=argparse.BooleanOptionalAction)
    full: bool = switch(
        "more rounds, and in the figure one curve each for 1, 2, 4, ... cores instead of one for all cores"
    )
    json: Path | None = option(None, "write all figures to FILE", type=Path, metavar="FILE")
    figure: Path | None = option(None, "draw the figure into FILE (results/sampling.png)", type=Path, metavar="FILE")

    def __post_init__(self) -> None:
        for name in ("cores", "envs_per_core", "workers", "horizon", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} must be at least 1")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        if self.figure and not self.table:
            raise UsageError(f"figure={self.figure} shows the table's runs; omit --no-table")
