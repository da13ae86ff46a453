"""When something that recurs is due."""

from typing import NamedTuple


class Every(NamedTuple):
    """Is due each time the run's agent steps pass a multiple of the interval; 0: never."""

    interval_steps: int

    def is_due(self, steps_before: int, steps: int) -> bool:
        """Tells whether a multiple lies in (steps_before, steps]."""
        return self.interval_steps > 0 and steps // self.interval_steps > steps_before // self.interval_steps
