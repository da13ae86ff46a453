"""The options of `accel-rl tune`."""

import math
from dataclasses import dataclass
from pathlib import Path

from accel_rl.errors import UsageError

LEAST_TURNS = 20  # that fit into the time: fewer can decide nothing


@dataclass(frozen=True)
class TuneOptions:
    """minutes: for everything, about. seconds: length of a turn; whole iterations can take longer.

    full_grid: tries every combination, however long it takes. tune_envs: searches the number of environments, too.
    Raises UsageError for a value out of range."""

    minutes: float = 3.0
    seconds: float = 0.7
    full_grid: bool = False
    tune_envs: bool = False
    overwrite: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("minutes", "seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)} must be greater than 0")
        if self.minutes * 60 < LEAST_TURNS * self.seconds:
            raise UsageError(
                f"minutes={self.minutes:g} is too short for turns of {self.seconds:g} s: use --minutes "
                f"{math.ceil(LEAST_TURNS * self.seconds / 6) / 10:g} or more"
            )
