"""Defines the arguments and error messages that the programs of this folder share."""

import argparse
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from accel_rl.bench.options import add_options, option, switch
from accel_rl.bench.timing import FULL_ROUNDS, Schedule, make_schedule
from accel_rl.errors import RunError, UsageError, unknown

Options = TypeVar("Options")


def seconds_option(default: float) -> Any:
    """Returns the field of --seconds with this default."""
    return option(default, f"length of a turn, in seconds ({default})", type=float, metavar="S")


def json_option() -> Any:
    """Returns the field of --json."""
    return option(None, "write all figures to FILE", type=Path, metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class TurnOptions:
    """Options of contests in turns. seconds: the length of a turn, which goes on until an iteration ends.

    Raises UsageError for a value out of range."""

    seconds: float = seconds_option(1.0)
    rounds: int | None = option(
        None, f"rounds (as many as fit into the program's time; --full: {FULL_ROUNDS})", type=int, metavar="N"
    )
    full: bool = switch(f"{FULL_ROUNDS} rounds")
    json: Path | None = json_option()

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


def parse(doc: str | None, options: type[Options], *checkouts: str, arguments: Sequence[str] | None = None) -> Options:
    """Returns the options of the command line, or of `arguments`. checkouts: names of positional folders.

    doc: the program's docstring, which is the help. Raises what the options raise for wrong values."""
    parser = make_parser(doc)
    for name in checkouts:
        parser.add_argument(name, type=Path, metavar=f"{name.upper()}_CHECKOUT", help=f"folder of the {name} commit")
    add_options(parser, options)
    return options(**vars(parser.parse_args(arguments)))


def run_program(program: Callable[[], object]) -> int:
    """Runs a program; returns its exit status: 0, or 2 after a UsageError and 1 after a RunError, which it prints."""
    try:
        program()
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0
