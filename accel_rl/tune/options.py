"""The options of `accel-rl tune`."""

import math
from dataclasses import dataclass
from pathlib import Path

from accel_rl.bench.options import option, switch
from accel_rl.errors import UsageError

LEAST_TURNS = 20  # that fit into the time: fewer can decide nothing


@dataclass(frozen=True)
class TuneOptions:
    """Options of `accel-rl tune`. Raises UsageError for a value out of range."""

    minutes: float = option(3.0, "how long it may take, about (default: 3)", type=float, metavar="X")
    seconds: float = option(0.7, "length of a turn (default: 0.7)", type=float, metavar="SECONDS")
    full_grid: bool = switch("try every combination, however long it takes, instead of a search")
    tune_envs: bool = switch(
        "also try half, twice and four times the environments, which changes the batch and so what is learned"
    )
    out: Path | None = option(
        None, "the settings file (default: tuned-<algo>-<env>.yaml)", type=Path, metavar="FILE.yaml"
    )
    overwrite: bool = switch("replace the file if it exists")

    def __post_init__(self) -> None:
        for name in ("minutes", "seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)} must be greater than 0")
        if self.minutes * 60 < LEAST_TURNS * self.seconds:
            raise UsageError(
                f"minutes={self.minutes:g} is too short for turns of {self.seconds:g} s: use --minutes "
                f"{math.ceil(LEAST_TURNS * self.seconds / 6) / 10:g} or more"
            )
