"""Defines findings, which are the lines of the report, and the problems that they name."""

from collections.abc import Callable
from typing import NamedTuple

from accel_rl.errors import describe_error

LEVELS = ("error", "warning", "optional")  # in the order of the report


class Problem(NamedTuple):
    """Something to fix, and the command that fixes it.

    level: error (nothing can be trained), warning (training is slower than it could be, or some runs fail), or optional
    (not everybody needs it). cause: the error behind it. A later problem that quotes a known cause is left out."""

    level: str
    what: str
    command: str
    cause: str = ""


class Finding(NamedTuple):
    """A probe's line of text, and its problems. is_fatal: the report ends here, since later probes would also crash."""

    text: str
    problems: tuple[Problem, ...] = ()
    is_fatal: bool = False


def examine(probe: Callable[[], Finding]) -> Finding:
    """Returns a probe's finding. If the probe raises, the error becomes the finding, since machines may be broken."""
    try:
        return probe()
    except (Exception, SystemExit) as error:  # packages may raise either on import
        return Finding(f"unknown: {describe_error(error)}")
