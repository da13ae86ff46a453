"""The command `accel-rl tune`. The command line imports this module for every command: it stays light."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from accel_rl.bench.options import add_options
from accel_rl.training.command import add_settings, given_settings
from accel_rl.tune.options import TuneOptions


def add_tune(commands: Any, arguments: list[str]) -> None:
    command = commands.add_parser(
        "tune",
        help="find the fastest settings for this machine",
        usage="accel-rl tune [--algo NAME] [--env ENV] [--minutes X] [--out FILE.yaml] [--full-grid] [--tune-envs] "
        "[any other setting]",
        description="Tries numbers of workers and threads (queued sampler: agents, predictors, trainers) with real "
        "training, prints how fast each was, and writes the fastest to a file for `accel-rl train --config`. What is "
        "set below stays as it is.",
        allow_abbrev=False,
    )
    add_options(command, TuneOptions)
    add_settings(command, arguments)
    command.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> None:
    from accel_rl.tune.tuning import run

    given = given_settings(options)
    config_file = given.pop("config", None)
    own = {field.name: given.pop(field.name) for field in fields(TuneOptions) if field.name in given}
    run(given, Path(config_file) if config_file else None, TuneOptions(**own))
