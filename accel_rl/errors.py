"""The two kinds of failure that a user meets, and an error that suggests the nearest names."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Wrong settings or arguments: one clear line, no traceback, exit status 2."""


class RunError(RuntimeError):
    """A failure while a run is under way (an environment, a worker, the disk): exit status 1."""


def unknown(kind: str, name: str, known: Iterable[str], way_out: str = "") -> UsageError:
    """Returns the error for a name that does not exist, with the nearest names that do."""
    known = list(known)
    by_lower = {candidate.lower(): candidate for candidate in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(by_lower[match] for match in nearest)}?" if nearest else ""
    return UsageError(f"unknown {kind} {name!r}{hint}{' ' + way_out if way_out else ''}")
