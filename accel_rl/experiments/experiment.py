"""Runs an experiment: resolves its runs, trains the unfinished ones, and reports.

FOLDER/<run>/ is a run's folder, FOLDER/<run>.yaml holds its settings, FOLDER/<run>.txt its console output.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.experiments.grid import Experiment, ExperimentRun, read_experiment
from accel_rl.experiments.report import report
from accel_rl.experiments.tasks import Executor, Failure, inspect_run, print_failures, run_tasks
from accel_rl.run_folder.lock import locked
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import check


def run_experiment(
    file: Path, overrides: dict[str, Any], folder: Path | None, make_executor: Callable[[Path, bool], Executor] | None
) -> None:
    """Trains the unfinished runs, then prints and draws the summary.

    overrides: settings for all runs. make_executor: takes the folder, and True if learners may share logical CPUs;
    None: trains nothing. Raises UsageError before anything starts, RunError if a run has failed, KeyboardInterrupt or
    SystemExit after a signal, once all runs have written their checkpoints."""
    experiment = read_experiment(file, overrides)
    folder = (folder or Path("results/experiments") / file.stem).absolute()  # a cluster's jobs start in other folders
    failed: list[Failure] = []
    if make_executor:
        share = any(combination.settings.get("share_processors") for combination in experiment.combinations)
        executor = make_executor(folder, share)
        configs = resolve_all(experiment, executor)
        with locked(folder, "experiment"):
            tasks = [
                inspect_run(
                    run.name, folder / run.name, run.settings, config, config.run.steps, run.combination.learners
                )
                for run, config in configs
            ]
            failed = run_tasks(tasks, executor)
    elif not any((folder / f"{run.name}.yaml").exists() for run in experiment.runs):
        raise UsageError(f"{folder} holds no experiment; omit --summary to start it there")
    report(experiment, folder)
    print_failures(failed)
    if failed:
        names = ", ".join(failure.task.name for failure in failed)
        raise RunError(f"{len(failed)} of {len(tasks)} runs failed: {names}; the same command runs them again")


def resolve_all(experiment: Experiment, executor: Executor) -> list[tuple[ExperimentRun, Config]]:
    """Resolves every run, on CPUs. Raises UsageError if one cannot start, or two are the same."""
    resolved, seen, specs = [], dict[str, str](), dict[str, EnvSpec]()
    for run in experiment.runs:
        combination = run.combination
        try:
            where = executor.check_settings(combination.learners)
            same_env = json.dumps({**combination.settings, "envs": None}, sort_keys=True, default=str)
            config = resolve({**run.settings, **where}, spec=specs.get(same_env))
            check(config)
        except UsageError as error:
            raise UsageError(f"{run.name}: {error}") from None
        specs[same_env] = config.spec
        same = json.dumps([combination.learners, config.as_dict()], sort_keys=True, default=str)
        if same in seen:
            raise UsageError(f"{seen[same]} and {run.name} are the same run; remove one of them")
        seen[same] = run.name
        resolved.append((run, config))
    return resolved
