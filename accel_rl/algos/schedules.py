"""Schedules: pure functions of the run's global step, so that they resume and rescale without any state."""


def schedule(kind: str, initial: float, step: int, schedule_steps: int) -> float:
    """constant: initial; linear: from initial at step 0 to 0 at schedule_steps, and 0 after."""
    if kind == "constant":
        return initial
    assert kind == "linear", kind
    return initial * max(0.0, 1 - step / schedule_steps)
