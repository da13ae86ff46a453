"""What a probe finds out: a line of text, the same as data, and what should be mended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LEVELS = ("error", "warning", "optional")  # in the order of the report


@dataclass(frozen=True)
class Problem:
    """What should be mended, and by which command.

    level: error (nothing can be trained), warning (training is slower than it could be, or some runs fail), or optional
    (something that not everybody needs). cause: the error behind it; the first problem with a cause stands for all."""

    level: str
    what: str
    command: str
    cause: str = ""


@dataclass(frozen=True)
class Finding:
    """text: as the report shows it. data: the same for --json, which can hold it."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


Probe = Callable[[], Finding]


def examine(probe: Probe) -> Finding:
    """Returns what a probe finds; of one that raises, its error, since a broken machine is what a doctor is for."""
    try:
        return probe()
    except Exception as error:
        return Finding(f"unknown: {describe(error)}", {"error": describe(error)})


def describe(error: BaseException) -> str:
    """Returns an error's kind and what it says, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
