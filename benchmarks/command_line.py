"""Defines the arguments and error messages that the programs of this folder share."""

import argparse
import inspect
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from accel_rl.bench.timing import FULL_ROUNDS, Schedule, make_schedule
from accel_rl.errors import RunError, UsageError, unknown


@dataclass(frozen=True)
class TurnOptions:
    """Options of contests in turns. seconds: the length of a turn, which goes on until an iteration ends.

    Raises UsageError for a value out of range."""

    seconds: float = 1.0
    rounds: int | None = None
    full: bool = False
    json: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} must be at least 1")

    def schedule(self, budget_s: float) -> Schedule:
        return make_schedule(self.seconds, self.rounds, self.full, budget_s)


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raises UsageError for an unknown name of this kind."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is the program's docstring."""
    return argparse.ArgumentParser(
        description=inspect.cleandoc(doc or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_turns(parser: argparse.ArgumentParser, seconds: float = 1.0, budget: str = "4 minutes") -> None:
    """Adds --seconds, --rounds and --full. budget: the program's default time, as text."""
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of a turn, in seconds ({seconds})")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"rounds (as many as fit into {budget}; --full: {FULL_ROUNDS})"
    )
    parser.add_argument("--full", action="store_true", help=f"{FULL_ROUNDS} rounds")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")


def run_program(program: Callable[[], object]) -> int:
    """Runs a program; returns its exit status: 0, or 2 after a UsageError and 1 after a RunError, which it prints."""
    try:
        program()
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
