"""Schedules: pure functions of the run's global step, so that they resume and rescale without any state.

A schedule is text, in a setting that `schedule_setting` makes:

    constant               the base value
    linear                 from the base value at step 0 to 0 at schedule_steps
    linear:0.1             the same, to 0.1 of the base value
    0:1 2e6:0.5 5e6:0.1    agent step : factor on the base value; linear between the points, constant outside
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

from accel_rl.config.fields import fields_checked_by, setting

Points = tuple[tuple[float, float], ...]  # (agent step, factor), steps rising

FORMS = "constant, linear, linear:SHARE, or points STEP:FACTOR as in '0:1 2e6:0.5 5e6:0.1'"


def schedule_setting(default: str, help: str) -> Any:
    """A field of a settings dataclass whose text is checked when the settings are built."""
    return setting(
        default,
        f"{help}: constant, linear (to 0 over schedule_steps), linear:0.1 (to that share of it), or points "
        "step:factor, linear in between, as in '0:1 2e6:0.5 5e6:0.1'",
        check=points,
    )


def schedule(text: str, initial: float, step: int, schedule_steps: int) -> float:
    """The value at that many agent steps of the run, where the base value is initial. Raises ValueError as `points`."""
    corners = points(text, schedule_steps)
    if step <= corners[0][0]:
        return initial * corners[0][1]
    for (start, before), (stop, after) in pairwise(corners):
        if step < stop:
            return initial * (before + (after - before) * (step - start) / (stop - start))
    return initial * corners[-1][1]


@lru_cache
def points(text: str, schedule_steps: int = 1) -> Points:
    """The corners of a schedule. Raises ValueError, saying which forms there are, for any other text."""
    if text == "constant":
        return ((0.0, 1.0),)
    if text == "linear":
        return points("linear:0", schedule_steps)
    if text.startswith("linear:"):
        share = _number(text.removeprefix("linear:"))
        if share is None:
            raise ValueError(f"must name a share that is at least 0, as in linear:0.1 (or: {FORMS})")
        return ((0.0, 1.0), (float(schedule_steps), share))
    pairs = [[_number(part) for part in word.split(":")] for word in text.split()]
    if len(pairs) < 2 or any(len(pair) != 2 or None in pair for pair in pairs):
        raise ValueError(f"must be {FORMS} (two points or more, numbers not below 0)")
    corners = tuple((step, factor) for step, factor in pairs if step is not None and factor is not None)
    if any(step <= before for (before, _), (step, _) in pairwise(corners)):
        raise ValueError("must have rising agent steps; put its points in order, each step once")
    return corners


def ends(settings: Any, schedule_steps: int) -> dict[str, tuple[float, float]]:
    """Of each setting that is a schedule, but constant: the agent step after which it stays, and its factor there."""
    texts = {name: getattr(settings, name) for name in fields_checked_by(points, type(settings))}
    return {name: points(text, schedule_steps)[-1] for name, text in texts.items() if text != "constant"}


def _number(text: str) -> float | None:
    """None unless it is one, finite and not negative."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
