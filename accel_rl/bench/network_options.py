"""The options of `accel-rl bench network`. The command line imports this module for every command: it stays light."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.hardware.topology import available_cpus

NETWORKS = ("a3c", "nature", "cule", "mlp")


@dataclass(frozen=True)
class NetworkOptions:
    """Options; HELP says what each one is and what None stands for. Raises UsageError for a value out of range."""

    network: Sequence[str] = ("a3c", "nature", "mlp")
    batches: Sequence[int] | None = None
    threads: Sequence[int] | None = None
    rounds: int | None = None
    seconds: float = 0.02
    json: Path | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.network) - set(NETWORKS)):
            raise UsageError(f"network={unknown[0]} is unknown; choose from {', '.join(NETWORKS)}")
        for batch in self.batches or ():
            if batch < 1:
                raise UsageError(f"batches={batch} must be at least 1")
        num_cpus = len(available_cpus())
        for threads in self.threads or ():
            if not 1 <= threads <= num_cpus:
                raise UsageError(
                    f"threads={threads} must be from 1 to {num_cpus}, the logical CPUs that this process may use"
                )
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} must be at least 1")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")


HELP: dict[str, str] = {
    "network": "networks: a3c (on frames of 104x80), nature, cule (both 84x84), mlp (CartPole) (a3c nature mlp)",
    "batches": "batch sizes, of acting and of learning (acting: 4 8 16 32 64; learning: 32 80 256 512; mlp: acting, 8)",
    "threads": "numbers of PyTorch's threads (1 2 4 ... up to the logical CPUs of this process, and to 16)",
    "rounds": "rounds (as many as fit into 35 seconds, and at least 5)",
    "seconds": "length of a turn, in seconds (0.02)",
    "json": "write all figures to FILE",
}


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one argument for each field of NetworkOptions."""
    kinds: dict[str, dict[str, Any]] = {
        "network": {"nargs": "+", "metavar": "NAME"},
        "batches": {"nargs": "+", "type": int, "metavar": "N"},
        "threads": {"nargs": "+", "type": int, "metavar": "N"},
        "rounds": {"type": int, "metavar": "N"},
        "seconds": {"type": float, "metavar": "S"},
        "json": {"type": Path, "metavar": "FILE"},
    }
    for field in fields(NetworkOptions):
        parser.add_argument(f"--{field.name}", default=field.default, help=HELP[field.name], **kinds[field.name])
