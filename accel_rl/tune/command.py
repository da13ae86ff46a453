"""The command `accel-rl tune`. The command line imports this module for every command: it stays light."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

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
    _add_options(command)
    add_settings(command, arguments)
    command.set_defaults(run=_tune)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Adds one argument for each field of TuneOptions."""
    default = TuneOptions()
    minutes = f"how long it may take, about (default: {default.minutes:g})"
    parser.add_argument("--minutes", type=float, default=default.minutes, metavar="X", help=minutes)
    seconds = f"length of a turn (default: {default.seconds:g})"
    parser.add_argument("--seconds", type=float, default=default.seconds, metavar="SECONDS", help=seconds)
    parser.add_argument(
        "--full-grid", action="store_true", help="try every combination, however long it takes, instead of a search"
    )
    parser.add_argument(
        "--tune-envs",
        action="store_true",
        help="also try half, twice and four times the environments, which changes the batch and so what is learned",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.yaml", help="the settings file (default: tuned-<algo>-<env>.yaml)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def _tune(options: argparse.Namespace) -> None:
    from accel_rl.tune.tuning import run

    given = given_settings(options)
    config_file = given.pop("config", None)
    own = {field.name: given.pop(field.name) for field in fields(TuneOptions) if field.name in given}
    run(given, Path(config_file) if config_file else None, TuneOptions(**own))
