"""A sweep: Optuna proposes settings, and the better ones are trained for longer. This is its YAML file:

title: ...
settings: {algo: ppo, steps: 100_000}           # all runs have these, named as for `accel-rl train`
envs: CartPole-v1                               # or several, each with the scores that count as 0 and as 1:
                                                # {CartPole-v1: [0, 500], Acrobot-v1: [-500, -80]}
seeds: [1, 2]                                   # a trial's value is the mean over these and the environments
search:                                         # the possible values of each setting
  learning_rate: {low: 1e-4, high: 1e-2, log: true}
  horizon: [32, 64, 128]
trials: 16
generation: 8                                   # trials proposed together, from the results of earlier ones
halving: {first: 12_500, factor: 2}             # the better half of a generation goes on to 25,000 steps, and so on
seed: 0                                         # decides the proposals
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.config.fields import LARGEST_FLOAT
from accel_rl.config.sources import read_yaml
from accel_rl.errors import UsageError, unknown
from accel_rl.experiments.grid import SET_ELSEWHERE, integer, mapping, read_seeds
from accel_rl.experiments.tasks import Task
from accel_rl.run_folder.directory import as_file_name

ELSEWHERE = {**SET_ELSEWHERE, "env": "name environments under `envs`"}
QUIET = {"eval_interval_steps": 0, "tensorboard": False, "report": False}  # unless the file says otherwise


@dataclass(frozen=True)
class Sweep:
    """A sweep, as its file describes it. envs: the scores that count as 0 and 1, by environment; search: by setting, a
    list of choices, or the arguments of a range: low, high, log."""

    settings: dict[str, Any]
    envs: dict[str, tuple[float, float]]
    seeds: tuple[int, ...]
    search: dict[str, Any]
    trials: int
    generation: int
    rungs: tuple[int, ...]  # the steps after which the trials of a generation are compared
    factor: int
    seed: int
    title: str

    def runs_of(self, params: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Returns the settings of a trial's runs, by their folders' names."""
        settings = {**QUIET, **self.settings, **params, "schedule_steps": self.rungs[-1]}
        return {
            f"{as_file_name(env)}-s{seed}": {**settings, "env": env, "seed": seed}
            for env in self.envs
            for seed in self.seeds
        }

    def value_of(self, tasks: Sequence[Task]) -> float | None:
        """Returns the mean score of a trial's runs, scaled by environment; None if one is missing."""
        values = []
        for task in tasks:
            if not task.finished or (score := task.score()) is None:
                return None
            low, high = self.envs[task.settings["env"]]
            values.append((score - low) / (high - low))
        return statistics.fmean(values)


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep's file. Raises UsageError for any other file."""
    values = read_yaml(path, "a sweep's parts")
    parts = ("title", "settings", "envs", "seeds", "search", "trials", "generation", "halving", "seed")
    try:
        for part in values:
            if part not in parts:
                raise unknown("part", str(part), parts, f"(a sweep has {', '.join(parts)})")
        settings, search = (mapping(name, values.get(name)) for name in ("settings", "search"))
        for name in (*settings, *search):
            if name in ELSEWHERE:
                raise UsageError(f"{name} cannot be set in a sweep; {ELSEWHERE[name]}")
        if not search:
            raise UsageError("search is empty")
        if twice := sorted(settings.keys() & search.keys()):
            raise UsageError(f"settings and search both have {', '.join(twice)}")
        steps, trials = integer("steps", settings.get("steps")), integer("trials", values.get("trials"))
        halving = mapping("halving", values.get("halving")) or {"first": steps}
        if unknown_parts := sorted(halving.keys() - {"first", "factor"}):
            raise unknown("part of halving", unknown_parts[0], ("first", "factor"))
        first, factor = integer("first", halving.get("first")), integer("factor", halving.get("factor", 2), least=2)
        if first > steps:
            raise UsageError(f"halving: first={first} must be at most steps={steps}")
        rungs = [first]
        while rungs[-1] < steps:
            rungs.append(min(steps, rungs[-1] * factor))
        return Sweep(
            settings,
            _envs(values.get("envs")),
            read_seeds(values),
            {name: _space(name, space) for name, space in search.items()},
            trials,
            min(trials, integer("generation", values.get("generation", trials))),
            tuple(rungs),
            factor,
            integer("seed", values.get("seed", 0), least=0),
            str(values.get("title", path.stem)),
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _envs(value: Any) -> dict[str, tuple[float, float]]:
    if isinstance(value, str):
        return {value: (0.0, 1.0)}
    scales = mapping("envs", value, "CartPole-v1: [0, 500]")
    for env, scale in scales.items():
        numbers = scale if isinstance(scale, list) and len(scale) == 2 else [0, 0]
        low, high = (_number(f"envs: {env}", number) for number in numbers)
        if not low < high:
            raise UsageError(f"envs: {env}={scale!r} must be the scores that count as 0 and as 1, as in [0, 500]")
        scales[env] = (low, high)
    if not scales:
        raise UsageError("envs is empty; name an environment, as in `envs: CartPole-v1`")
    return scales


def _space(name: str, value: Any) -> Any:
    """Returns a setting's choices, or its range as {low, high, log}, in numbers."""
    if isinstance(value, list):
        if not value or not all(choice is None or isinstance(choice, str | bool | int | float) for choice in value):
            raise UsageError(f"search: {name}={value!r} must have choices that are numbers or names")
        return value
    if not isinstance(value, dict) or not {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        raise UsageError(f"search: {name}={value!r} must be a list or a range, as in {{low: 1, high: 8, log: true}}")
    low, high = (_number(f"search: {name}", value[end]) for end in ("low", "high"))
    if not low < high or (value.get("log") and low <= 0):
        raise UsageError(f"search: {name}={value!r} is empty; low must be less than high, and with log above 0")
    return {"low": low, "high": high, "log": bool(value.get("log"))}


def _number(name: str, value: Any) -> float | int:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_FLOAT:
        return value
    raise UsageError(f"{name}: {value!r} must be a finite number")
