"""The commands `accel-rl train` and `accel-rl launch`: one run, on one or all GPUs, or all runs of an experiment.

The command line imports this module for every command: it stays light."""

import argparse
import os
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.training.command import add_settings, given_settings, settings_of_file

RUN_ARGUMENTS = ("out", "config", "resume", "overwrite", "trust")  # of `train` that are no settings


def add_train(commands: Any, arguments: list[str]) -> None:
    command = commands.add_parser(
        "train",
        help="train an agent",
        usage="accel-rl train [--algo NAME] [--env ENV] [--steps N] [--out DIR] [any other setting]",
        description="Trains an agent, by default A2C on Pong. Settings: default < preset < --config file < flag.",
        allow_abbrev=False,
    )
    _add_train_arguments(command, arguments)
    command.set_defaults(run=_train)


def add_launch(commands: Any, arguments: list[str]) -> None:
    command = commands.add_parser(
        "launch",
        help="train on all GPUs, or run an experiment on them",
        usage="accel-rl launch [--gpus 0-3 | --devices cpu,cpu] [--experiment FILE [--summary]] [--out DIR] "
        "[any other setting]",
        description="Trains one agent on all GPUs, with a learner on each. With --experiment: trains every run of a "
        "grid of settings and seeds on these GPUs, continues where it was interrupted, and prints the results next to "
        "those of the paper.",
        allow_abbrev=False,
    )
    group = command.add_argument_group("devices and experiments")
    group.add_argument(
        "--gpus", metavar="LIST", help="which GPUs, as in 0-3 (default: all); without GPUs, use --devices cpu,cpu"
    )
    group.add_argument(
        "--experiment",
        type=Path,
        metavar="FILE",
        help="a YAML file; its runs are written to --out (default: results/experiments/<file's name>)",
    )
    group.add_argument("--summary", action="store_true", help="only print and draw the results so far; train nothing")
    _add_train_arguments(command, arguments)
    command.set_defaults(run=_launch)


def _add_train_arguments(command: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Adds the flags of `train`: for a run's folder, and for its settings."""
    command.add_argument("--out", metavar="DIR", help="the run's folder (default: results/<algo>/<env>/<time>-s<seed>)")
    command.add_argument("--resume", metavar="RUN_DIR", help="continue the run in this folder, up to --steps")
    command.add_argument("--overwrite", action="store_true", help="replace the run that --out already holds")
    command.add_argument("--trust", action="store_true", help="resume another user's checkpoint, which can run code")
    command.add_argument("--show-affinity", action="store_true", help="print which logical CPUs are used, and exit")
    add_settings(command, arguments)


def _train(options: argparse.Namespace) -> None:
    _train_with(given_settings(options))


def _train_with(given: dict[str, Any]) -> None:
    if given.pop("show_affinity"):
        return _show_affinity(given)
    from accel_rl.distributed.launch import trained
    from accel_rl.distributed.run_request import RunRequest

    own = {name: given.pop(name) for name in RUN_ARGUMENTS if name in given}
    with trained(RunRequest(given, **own), show=True) as folder:
        if os.environ.get("RANK", "0") == "0":  # started by torchrun, only the first learner prints it
            from accel_rl.analysis.summary import print_summary
            from accel_rl.config.sources import read_settings
            from accel_rl.report.page import print_page

            print_summary(folder)
            if read_settings(folder)["report"]:
                print_page(folder)


def _launch(options: argparse.Namespace) -> None:
    from accel_rl.config.fields import build
    from accel_rl.config.learners import LearnerSettings
    from accel_rl.experiments.scheduler import run_experiment

    given = given_settings(options)
    file, only_report, gpus = given.pop("experiment", None), given.pop("summary"), given.pop("gpus", None)
    if gpus is not None:
        if "devices" in given:
            raise UsageError(f"devices={given['devices']} and gpus={gpus} both name devices; omit one of them")
        given["devices"] = gpus
    if file is None:
        if only_report:
            raise UsageError("--summary needs an experiment; name its file with --experiment FILE")
        if "device" not in given and not settings_of_file(options).get("devices"):
            given.setdefault("devices", "all")
        return _train_with(given)
    trust = given.pop("trust")
    for name in ("config", "resume", "overwrite", "show_affinity", "device"):
        if given.pop(name, None):
            raise UsageError(f"--{name.replace('_', '-')} is for a single run; omit it with --experiment")
    own = ("devices", "learners_per_gpu")
    learners = build(LearnerSettings, {name: given.pop(name) for name in own if name in given})
    folder, cpus = given.pop("out", None), given.pop("cpus", "all")
    run_experiment(
        file,
        given,
        Path(folder) if folder else None,
        learners.devices or "all",
        learners.learners_per_gpu,
        cpus,
        only_report,
        trust,
    )


def _show_affinity(given: dict[str, Any]) -> None:
    from accel_rl.config.sources import overlay, read_settings
    from accel_rl.training.build import check
    from accel_rl.training.description import describe_placement
    from accel_rl.training.resolve import resolve

    resume, file, *_ = (given.pop(name, None) for name in ("resume", "config", "out", "overwrite", "trust"))
    saved = read_settings(Path(resume)) if resume else {}
    config = check(resolve(overlay(saved, given), Path(file) if file else None))
    print(
        "\n".join(
            [*describe_placement(config), *(f"warning     {text}" for plan in config.plans for text in plan.warnings)]
        )
    )
