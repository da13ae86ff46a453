"""The options of `accel-rl bench sampling`. The command line imports this module for every command: it stays light."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError


@dataclass(frozen=True)
class SamplingOptions:
    """Options; HELP says what each one is and what None stands for. Raises UsageError for a value out of range."""

    env: str = "pong"
    env_preset: str = "stooke"
    simulator: str = "auto"
    cores: int | None = None
    envs_per_core: int = 8
    workers: int | None = None
    horizon: int = 64
    seconds: float = 1.0
    rounds: int | None = None
    device: str | None = None
    peers: bool = True
    table: bool = True
    full: bool = False
    json: Path | None = None
    figure: Path | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "envs_per_core", "workers", "horizon", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} must be at least 1")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")


HELP: dict[str, str] = {
    "env": "Atari game",
    "env_preset": "frames and episodes: stooke, dqn84 or v5",
    "simulator": "native, ale, or auto: native for games that it plays exactly",
    "cores": "use only the first N of this process's cores (all)",
    "envs_per_core": "environments per core in the comparison",
    "workers": "simulator processes, where the environments divide evenly (one per logical CPU)",
    "horizon": "steps per rollout without a barrier",
    "seconds": "length of a turn, in seconds",
    "rounds": "rounds of each comparison (as many as fit into 4 minutes, or 20 with --full)",
    "device": "where the network of table and figure runs: cpu, cuda, cuda:1 ... (the first GPU, or else cpu)",
    "peers": "also measure EnvPool, ale-py's AtariVectorEnv and gymnasium's AsyncVectorEnv",
    "table": "also measure Table 1 and Figure 2",
    "full": "more rounds, and in the figure one curve each for 1, 2, 4, ... cores instead of one for all cores",
    "json": "write all figures to FILE",
    "figure": "draw the figure into FILE (results/sampling.png)",
}
TYPES: dict[str, Any] = {"seconds": float, "json": Path, "figure": Path}
TYPES |= dict.fromkeys(("env", "env_preset", "simulator", "device"), str)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one argument for each field of SamplingOptions."""
    for field in fields(SamplingOptions):
        flag = f"--{field.name.replace('_', '-')}"
        default: Any = field.default
        help_text = HELP[field.name] + (f" ({default})" if default is not None and field.type is not bool else "")
        if field.type is bool:
            action: Any = argparse.BooleanOptionalAction if default else "store_true"
            parser.add_argument(flag, action=action, default=default, help=help_text)
        else:
            kind = TYPES.get(field.name, int)
            metavar = {int: "N", float: "S", str: field.name.rsplit("_", 1)[-1].upper(), Path: "FILE"}[kind]
            parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=help_text)
