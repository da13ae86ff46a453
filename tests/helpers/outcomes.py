"""Outcomes of simulators' steps in a form that can be compared."""

from typing import Any

from accel_rl.envs.spec import Outcome


def comparable(outcome: Outcome) -> tuple[Any, ...]:
    """Returns the outcome with the bytes of its last frame."""
    last_frame = outcome.last_frame
    return *outcome[:5], None if last_frame is None else last_frame.tobytes()
