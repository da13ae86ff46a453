"""Schedules: pure functions of the run's agent step. They need no state to resume or to rescale.

A schedule is the text of a setting made by `schedule_setting`:

    constant               the base value
    linear                 from the base value at step 0 to 0 at schedule_steps
    linear:0.1             the same, but to 0.1 of the base value
    0:1 2e6:0.5 5e6:0.1    agent step : factor of the base value; linear between the points, constant outside
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

from accel_rl.config.fields import fields_checked_by, setting

Points = tuple[tuple[float, float], ...]  # (agent step, factor), steps increasing

LARGEST = 1e18  # limit for steps and for factors
FORMS = "constant, linear, linear:FRACTION, or points STEP:FACTOR as in '0:1 2e6:0.5 5e6:0.1'"


def schedule_setting(default: str, help: str, basic: bool = False) -> Any:
    """Returns a field of a settings dataclass that holds a schedule, checked when the settings are built."""
    return setting(
        default,
        f"{help}: constant, linear (to 0), linear:0.1 (to a tenth), or points as in '0:1 2e6:0.5 5e6:0.1'",
        check=points,
        basic=basic,
    )


def schedule(text: str, initial: float, step: int, schedule_steps: int) -> float:
    """Returns the value at an agent step of the run; initial: the base value. Raises ValueError as `points` does."""
    schedule_points = points(text, schedule_steps)
    if step <= schedule_points[0][0]:
        return initial * schedule_points[0][1]
    for (start, start_factor), (stop, stop_factor) in pairwise(schedule_points):
        if step < stop:
            return initial * (start_factor + (stop_factor - start_factor) * (step - start) / (stop - start))
    return initial * schedule_points[-1][1]


@lru_cache
def points(text: str, schedule_steps: int = 1) -> Points:
    """Returns the points of a schedule. Raises ValueError, which lists the valid forms, for any other text."""
    if text == "constant":
        return ((0.0, 1.0),)
    if text == "linear":
        return points("linear:0", schedule_steps)
    if text.startswith("linear:"):
        fraction = _number(text.removeprefix("linear:"))
        if fraction is None:
            raise ValueError(f"must give a fraction of at least 0, as in linear:0.1 (or: {FORMS})")
        return ((0.0, 1.0), (float(schedule_steps), fraction))
    pairs = [[_number(part) for part in word.split(":")] for word in text.split()]
    if len(pairs) < 2 or any(len(pair) != 2 or None in pair for pair in pairs):
        raise ValueError(f"must be {FORMS} (at least two points, no negative numbers)")
    parsed = tuple((step, factor) for step, factor in pairs if step is not None and factor is not None)
    if any(step <= previous for (previous, _), (step, _) in pairwise(parsed)):
        raise ValueError("must have increasing agent steps; sort its points and give each step once")
    return parsed


def ends(settings: Any, schedule_steps: int) -> dict[str, tuple[float, float]]:
    """Returns, for each setting that is a schedule other than constant, its last point: (agent step, factor)."""
    texts = {name: getattr(settings, name) for name in fields_checked_by(points, type(settings))}
    return {name: points(text, schedule_steps)[-1] for name, text in texts.items() if text != "constant"}


def _number(text: str) -> float | None:
    """Returns the number, or None if it is larger than any run needs, negative, or not a number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= LARGEST else None
