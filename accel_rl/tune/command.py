"""The command `accel-rl tune`. Every command imports this module, so its imports must be light."""

import argparse
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accel_rl.bench.options import add_options, option, switch
from accel_rl.errors import UsageError
from accel_rl.settings.command_flags import add_settings, given_settings


@dataclass(frozen=True)
class TuneOptions:
    """Options of `accel-rl tune`. Raises UsageError for a value out of range."""

    minutes: float = option(3.0, "approximate time limit (default: 3)", type=float, metavar="X")
    seconds: float = option(0.7, "length of a turn (default: 0.7)", type=float, metavar="SECONDS")
    tune_envs: bool = switch(
        "also try half, twice and four times the environments, which changes the batch and so what is learned"
    )
    out: Path | None = option(None, "the settings file (default: tuned-<algo>-<env>.yaml)", type=Path, metavar="FILE")
    overwrite: bool = switch("replace the file if it exists")

    def __post_init__(self) -> None:
        for name in ("minutes", "seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)} must be greater than 0")


def add_tune(commands: Any, arguments: list[str]) -> None:
    command = commands.add_parser(
        "tune",
        help="find the fastest settings for this machine",
        usage="accel-rl tune [--algo NAME] [--env ENV] [--minutes X] [--out FILE] [--tune-envs] [any other setting]",
        description="Trains with different numbers of workers and threads (queued: agents, predictors, trainers), "
        "prints how fast each is, and writes the fastest to a file for `accel-rl train --config`. Settings that you "
        "give stay as they are.",
        allow_abbrev=False,
    )
    add_options(command, TuneOptions)
    add_settings(command, arguments)
    command.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> None:
    from accel_rl.config.sources import overlay, read_yaml
    from accel_rl.tune.tuning import run

    given = given_settings(options)
    file = given.pop("config", None)
    own = {field.name: given.pop(field.name) for field in fields(TuneOptions) if field.name in given}
    run(overlay(read_yaml(Path(file), "settings") if file else {}, given), **vars(TuneOptions(**own)))
