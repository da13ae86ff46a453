"""The two kinds of failure a user meets, and helpers for their messages."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class UsageError(ValueError):
    """Wrong settings or arguments: one clear line, no traceback, exit status 2."""


class RunError(RuntimeError):
    """A failure while a run is under way (an environment, a worker, the disk): exit status 1."""


def count(number: int, what: str) -> str:
    """Returns, for example, "1 core" or "2 cores"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def unknown(kind: str, name: str, known: Iterable[str], way_out: str = "") -> UsageError:
    """Returns the error for a name that does not exist, with the nearest names that do."""
    known = list(known)
    by_lower = {candidate.lower(): candidate for candidate in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.55)
    hint = f"; did you mean {' or '.join(by_lower[match] for match in nearest)}?" if nearest else ""
    return UsageError(f"unknown {kind} {name!r}{hint}{' ' + way_out if way_out else ''}")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its class if it has none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def describe_error(error: BaseException) -> str:
    """Returns an error's class and the first line of its message."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raises UsageError if the `with` block imports a missing package. extra: the pip extra that installs it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{what} needs {error.name}; install it with: pip install 'accel-rl[{extra}]'") from None
