"""The commands `accel-rl train`, `launch` and `sweep`: one run, all runs of an experiment, or a search for settings.

Every command imports this module, so its imports must be light."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_rl.errors import UsageError
from accel_rl.settings.command_flags import add_settings, given_settings, settings_of_file

if TYPE_CHECKING:
    from accel_rl.distributed.run_request import RunRequest
    from accel_rl.experiments.tasks import Executor

    MakeExecutor = Callable[[Path, bool], Executor]  # the folder; True if learners may share logical CPUs

RUN_ARGUMENTS = ("out", "config", "resume", "overwrite", "trust")  # arguments of `train` other than settings


def add_train(commands: Any, arguments: list[str]) -> None:
    command = commands.add_parser(
        "train",
        help="train an agent",
        usage="accel-rl train [--algo NAME] [--env ENV] [--steps N] [--out DIR] [any other setting]",
        description="Trains an agent, by default A2C on Pong. Settings: default < preset < --config file < flag.",
        allow_abbrev=False,
    )
    _add_train_arguments(command, arguments)
    command.set_defaults(run=lambda options: _train(given_settings(options)))


def add_launch(commands: Any, arguments: list[str]) -> None:
    command = commands.add_parser(
        "launch",
        help="train on all GPUs, or run an experiment on them",
        usage="accel-rl launch [--gpus 0-3 | --devices cpu,cpu] [--experiment FILE [--executor slurm] [--summary]] "
        "[--out DIR] [any other setting]",
        description="Trains one agent on all GPUs, with a learner on each. With --experiment: trains every run of a "
        "grid of settings and seeds on these GPUs, continues where it was interrupted, and prints the results next to "
        "those of the paper.",
        allow_abbrev=False,
    )
    group = command.add_argument_group("devices and experiments")
    group.add_argument(
        "--experiment",
        type=Path,
        metavar="FILE",
        help="a YAML file; its runs are written to --out (default: results/experiments/<file's name>)",
    )
    _add_executor(group)
    group.add_argument("--summary", action="store_true", help="only print and draw the results so far; train nothing")
    _add_train_arguments(command, arguments)
    command.set_defaults(run=_launch)


def add_sweep(commands: Any) -> None:
    command = commands.add_parser(
        "sweep",
        help="search for settings",
        description="Trains trials whose settings Optuna proposes, the better ones for longer; continues where it was "
        "interrupted, and writes the best settings to best.yaml, for `accel-rl train --config`.",
    )
    command.add_argument("file", type=Path, metavar="FILE", help="a YAML file: what is trained, and what may vary")
    command.add_argument("--out", type=Path, metavar="DIR", help="its folder (default: results/sweeps/<file's name>)")
    command.add_argument("--devices", metavar="LIST", help="devices of this machine, as in cpu,cpu (default: all GPUs)")
    command.add_argument("--cpus", metavar="LIST", help="logical CPUs of this machine, as in 0-7 (default: all)")
    _add_executor(command)
    command.set_defaults(run=_sweep)


def _add_executor(group: Any) -> None:
    """Adds the flags that say where the runs of an experiment or a sweep are trained."""
    group.add_argument(
        "--gpus",
        dest="devices",
        metavar="LIST",
        help="which GPUs, as in 0-3 (default: all); without GPUs, use --devices cpu,cpu",
    )
    group.add_argument(
        "--executor",
        choices=("local", "slurm", "ray"),
        default="local",
        help="where an experiment's runs are trained: on this machine (default), or each as a job of a cluster",
    )
    group.add_argument(
        "--job",
        metavar="{K: V}",
        help="a job's resources: cpus and gpus for each learner, and any options of submitit or Ray, as in "
        "'{cpus: 8, mem_gb: 16}'",
    )


def _add_train_arguments(command: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Adds the flags of `train`: for a run's folder, and for its settings."""
    command.add_argument("--out", metavar="DIR", help="the run's folder (default: results/<algo>/<env>/<time>-s<seed>)")
    command.add_argument("--resume", metavar="RUN_DIR", help="continue the run in this folder, up to --steps")
    command.add_argument("--overwrite", action="store_true", help="replace the run that --out already holds")
    command.add_argument("--trust", action="store_true", help="resume another user's checkpoint, which can run code")
    command.add_argument("--show-affinity", action="store_true", help="print which logical CPUs are used, and exit")
    add_settings(command, arguments)


def _train(arguments: dict[str, Any]) -> None:
    from accel_rl.distributed.run_request import RunRequest

    only_shows = arguments.pop("show_affinity")
    own = {name: arguments.pop(name) for name in RUN_ARGUMENTS if name in arguments}
    request = RunRequest(arguments, **own)
    if only_shows:
        return _show_affinity(request)
    from accel_rl.distributed.launch import trained

    with trained(request, show=True) as folder:
        if os.environ.get("RANK", "0") == "0":  # under torchrun, only the first learner prints it
            from accel_rl.analysis.summary import print_summary
            from accel_rl.config.sources import read_settings
            from accel_rl.report.page import print_page

            print_summary(folder)
            if read_settings(folder)["report"]:
                print_page(folder)


def _launch(options: argparse.Namespace) -> None:
    from accel_rl.config.fields import flag_of

    arguments = given_settings(options)
    file, only_report = arguments.pop("experiment", None), arguments.pop("summary")
    if file is None:
        executor, job = arguments.pop("executor"), arguments.pop("job", None)
        given = {"--summary": only_report, "--executor": executor != "local", "--job": job}
        if flag := next((flag for flag, is_given in given.items() if is_given), None):
            raise UsageError(f"{flag} needs an experiment; name its file with --experiment FILE")
        if "device" not in arguments and not settings_of_file(options).get("devices"):
            arguments.setdefault("devices", "all")
        return _train(arguments)
    for name in ("config", "resume", "overwrite", "show_affinity", "device"):
        if arguments.pop(name, None):
            raise UsageError(f"{flag_of(name)} is for a single run; omit it with --experiment")
    folder = arguments.pop("out", None)
    make_executor = _take_executor(arguments)
    from accel_rl.experiments.experiment import run_experiment

    run_experiment(file, arguments, Path(folder) if folder else None, None if only_report else make_executor)


def _sweep(options: argparse.Namespace) -> None:
    arguments = given_settings(options)
    make_executor = _take_executor(arguments)
    from accel_rl.experiments.sweep import run_sweep

    run_sweep(options.file, options.out, make_executor)


def _take_executor(arguments: dict[str, Any]) -> "MakeExecutor":
    """Removes the flags of `_add_executor` from the arguments; returns a function that makes the executor."""
    from accel_rl.config.fields import build, flag_of

    executor, job = arguments.pop("executor"), arguments.pop("job", None)
    if executor == "local" and job is not None:
        raise UsageError("--job is for a cluster; name it with --executor slurm or ray")
    names = ("devices", "learners_per_gpu", "cpus")
    places: dict[str, Any] = {name: arguments.pop(name) for name in names if name in arguments}
    trust = arguments.pop("trust", False)
    if executor != "local":
        from accel_rl.experiments.clusters import JobOptions, RayExecutor, SlurmExecutor

        for place in places:
            hint = "set a job's resources with --job '{cpus: 8, gpus: 1}'"
            raise UsageError(f"{flag_of(place)} is for this machine; with --executor {executor}, {hint}")
        options = JobOptions.read(job or "{}")
        if executor == "slurm":
            return lambda folder, share: SlurmExecutor(folder, options, trust)
        return lambda folder, share: RayExecutor(options, trust)
    from accel_rl.config.learners import LearnerSettings
    from accel_rl.experiments.local import LocalExecutor, make_slots
    from accel_rl.hardware.devices import find_devices
    from accel_rl.hardware.topology import read_topology

    cpus = places.pop("cpus", "all")
    learners = build(LearnerSettings, places)

    def make(folder: Path, share: bool) -> "Executor":
        per_gpu = learners.learners_per_gpu
        devices = find_devices(learners.devices or "all", per_gpu)[::per_gpu]
        return LocalExecutor(make_slots(devices, read_topology(cpus), share), per_gpu, trust)

    return make


def _show_affinity(request: "RunRequest") -> None:
    from accel_rl.training.description import describe_placement

    config, _ = request.resolve()
    warnings = (f"warning     {text}" for plan in config.plans for text in plan.warnings)
    print("\n".join([*describe_placement(config), *warnings]))
