"""Runs a sweep: Optuna proposes settings in generations, and the better trials of each are trained for longer.

FOLDER/trial-<n>/ holds a trial's runs; FOLDER/study.db holds the ended trials, for Optuna and its dashboard. Proposals
depend only on these and on the seed, runs repeat exactly, and a generation's trials are stored in their order. So a
sweep killed at any moment can be continued to the same results.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from accel_rl.config.fields import build
from accel_rl.config.run_settings import RunSettings
from accel_rl.config.sources import dump_yaml, read_yaml
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.experiments.study import Study, Trial
from accel_rl.experiments.sweep_file import Sweep, read_sweep
from accel_rl.experiments.tasks import NO_RESULT, Executor, Task, inspect_run, print_failures, run_tasks
from accel_rl.run_folder.atomic import write_file
from accel_rl.run_folder.lock import locked
from accel_rl.settings.names import RUN_GROUPS, unknown_setting
from accel_rl.settings.resolve import Config, find_algo, resolve
from accel_rl.training.build import check

VERSION = 1  # the folder's format
FILE, DATABASE = "sweep.yaml", "study.db"
SHOWN = 10  # trials in the table
OUTSIDE_FAILURES = (2, NO_RESULT)  # no fault of the trial: its settings were checked, or the cluster lost it


def run_sweep(file: Path, folder: Path | None, make_executor: Callable[[Path, bool], Executor]) -> None:
    """Trains a sweep's trials, from where it was interrupted; then prints the best ones and writes them.

    Raises UsageError before anything starts, RunError if no trial has a value, KeyboardInterrupt or SystemExit after a
    signal, once all runs have written their checkpoints."""
    sweep = read_sweep(file)
    folder = (folder or Path("results/sweeps") / file.stem).absolute()  # a cluster's jobs start in other folders
    executor = make_executor(folder, bool(sweep.settings.get("share_processors")))
    sweep = check_space(sweep, executor)
    check_folder(sweep, folder)
    with locked(folder, "sweep"):
        study = Study(sweep, folder / DATABASE)
        if not (folder / FILE).exists():
            text = yaml.safe_dump(_described(sweep), sort_keys=False)
            write_file(folder / FILE, text.encode(), "sweep")
        noted = len(study.trials())
        for generation in range(math.ceil(sweep.trials / sweep.generation)):
            trials = study.propose(generation)
            if trials[-1].number < noted:
                continue
            print(f"generation {generation}: trials {trials[0].number} to {trials[-1].number}", flush=True)
            train_generation(sweep, trials, folder, executor)
            study.add(trials)
        write_results(sweep, study.trials(), folder)


def train_generation(sweep: Sweep, trials: list[Trial], folder: Path, executor: Executor) -> None:
    """Trains a generation's trials from rung to rung; only the better ones go on.

    Raises UsageError for a run's folder with other settings, RunError if runs have ended for a reason outside of their
    trials."""
    configs: dict[str, dict[str, Config]] = {}
    for trial in trials:
        try:
            configs[trial.name] = resolve_trial(sweep, trial.params, executor)
        except UsageError as error:
            trial.failed = str(error)
    alive = [trial for trial in trials if not trial.failed]
    for rung, steps in enumerate(sweep.rungs):
        if rung:
            alive = _best_first(alive, sweep.rungs[rung - 1])[: max(1, len(trials) // sweep.factor**rung)]
        runs: dict[str, list[Task]] = {}
        for trial in [each for each in trials if each in alive]:  # in the order of their numbers
            (folder / trial.name).mkdir(exist_ok=True)
            runs[trial.name] = [
                inspect_run(f"{trial.name}-{run}", folder / trial.name / run, settings, configs[trial.name][run], steps)
                for run, settings in sweep.runs_of(trial.params).items()
            ]
        failed = run_tasks([task for tasks in runs.values() for task in tasks], executor)
        print_failures(failed)
        if lost := [failure.task.name for failure in failed if failure.status in OUTSIDE_FAILURES]:
            raise RunError(f"{', '.join(lost)} ended for a reason outside the run; the same command continues")
        for trial in [*alive]:
            value = sweep.value_of(runs[trial.name])
            if value is None:
                names = [failure.task.name for failure in failed if failure.task in runs[trial.name]]
                trial.failed = ", ".join(f"{name} has failed" for name in names) or "no game has ended"
                alive.remove(trial)
            else:
                trial.values[steps] = value


def check_space(sweep: Sweep, executor: Executor) -> Sweep:
    """Returns the sweep with the ends of its ranges converted to the settings' types.

    Raises UsageError for a setting that does not exist, for a value that it cannot have, or if neither the first nor
    the last values of all settings fit together."""
    algos = sweep.search.get("algo", [sweep.settings.get("algo", RunSettings.algo)])
    classes = [*RUN_GROUPS.values(), *(find_algo(str(algo))[0].Settings for algo in algos)]
    search = {name: _checked(name, space, classes) for name, space in sweep.search.items()}
    sweep = replace(sweep, search=search)
    refusals = []
    for end in (0, -1):
        try:
            resolve_trial(sweep, {name: _values(space)[end] for name, space in search.items()}, executor)
            return sweep
        except UsageError as error:
            refusals.append(error)
    raise refusals[0]


def _checked(name: str, space: Any, classes: Sequence[type]) -> Any:
    """Converts a setting's space to its type. Raises UsageError for an unknown setting or a wrong value."""
    owner = next((each for each in classes if name in {field.name for field in fields(each)}), None)
    if owner is None:
        known = [field.name for each in classes for field in fields(each)]
        raise unknown_setting("setting", name, known)
    for value in _values(space):
        build(owner, {name: value})
    if isinstance(space, list):
        return space
    accepted = get_type_hints(owner)[name]
    if accepted is float or float in get_args(accepted):
        return {**space, "low": float(space["low"]), "high": float(space["high"])}
    return {**space, "low": int(space["low"]), "high": int(space["high"])}


def _values(space: Any) -> list[Any]:
    """Returns a setting's choices, or the ends of its range."""
    return space if isinstance(space, list) else [space["low"], space["high"]]


def resolve_trial(sweep: Sweep, params: dict[str, Any], executor: Executor) -> dict[str, Config]:
    """Returns the resolved configurations of a trial's runs. Raises UsageError if settings do not fit together."""
    specs: dict[str, EnvSpec] = {}
    configs = {}
    for name, settings in sweep.runs_of(params).items():
        env, where = settings["env"], executor.check_settings(1)
        configs[name] = resolve({**settings, "steps": sweep.rungs[-1], **where}, spec=specs.get(env))
        specs[env] = configs[name].spec
        check(configs[name])
    return configs


def check_folder(sweep: Sweep, folder: Path) -> None:
    """Raises UsageError if the folder belongs to another sweep or another version."""
    if not (folder / FILE).exists():
        return
    saved, ours = read_yaml(folder / FILE, "a sweep"), _described(sweep)
    if saved.get("version") != VERSION:
        raise UsageError(f"{folder} is from another version ({saved.get('version')}); give this sweep another --out")
    if changed := [name for name in ours if ours[name] != saved.get(name) and name != "title"]:
        raise UsageError(f"{folder} was started with different {', '.join(changed)}; give this sweep another --out")


def _described(sweep: Sweep) -> dict[str, Any]:
    """Returns a sweep as plain data for a file."""
    return {"version": VERSION, **json.loads(json.dumps(asdict(sweep)))}


def _best_first(trials: Iterable[Trial], steps: int) -> list[Trial]:
    """Sorts trials by their values after this many steps, then by their numbers."""
    return sorted(trials, key=lambda trial: (-trial.values[steps], trial.number))


# ---- results ----


def write_results(sweep: Sweep, trials: Sequence[Trial], folder: Path) -> None:
    """Prints the best trials and writes them to summary.md, and the settings of the best one to best.yaml.

    Raises RunError if no trial has reached the last steps."""
    steps = sweep.rungs[-1]
    best = _best_first((trial for trial in trials if steps in trial.values), steps)
    if not best:
        reason = next((trial.failed for trial in trials if trial.failed), "")
        raise RunError(f"no trial has a value at {steps:,} steps: {reason}")
    lines = [f"# {sweep.title}", "", f"| trial | {' | '.join(sweep.search)} | value |"]
    lines.append("|---" * (len(sweep.search) + 2) + "|")
    for trial in best[:SHOWN]:
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.params.values()]
        lines.append(f"| {trial.number} | {' | '.join(cells)} | {trial.values[steps]:.4g} |")
    failed = sum(bool(trial.failed) for trial in trials)
    lines += ["", f"{len(trials)} trials, {len(best)} of them with all {steps:,} steps, {failed} failed."]
    (folder / "summary.md").write_text("\n".join(lines) + "\n")
    settings = {**sweep.settings, "env": next(iter(sweep.envs)), **best[0].params}
    (folder / "best.yaml").write_text(dump_yaml(settings))
    others = " --env " + " or ".join(sweep.envs) if len(sweep.envs) > 1 else ""
    print("\n" + "\n".join(lines) + f"\n\nbest    accel-rl train --config {folder / 'best.yaml'}{others}")
