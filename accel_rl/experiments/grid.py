"""An experiment: a grid of settings and seeds, next to the numbers of a paper. This is its YAML file:

title: ...
settings: {env: breakout, steps: 50_000_000}    # all runs have these, named as for `accel-rl train`
grid:                                           # all combinations of the lists in each block
  - algo: [a2c, ppo]                            # a list is varied, and part of the runs' names
    learners: [1, 2, 4, 8]                      # learners of a run, each on a device (default: 1)
    envs_per_learner: 16                        # a single value is not varied; this one means envs = learners x 16
seeds: [1, 2]                                   # every combination is run with each of them
paper:
  source: Stooke & Abbeel 2018, Table 2
  steps: 50_000_000                             # the number of steps that its hours are for
  rows:
    - {algo: a2c, learners: 1, hours: 3.8}      # or steps_per_second, or score; the other values select the runs
"""

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.config.fields import flag_of
from accel_rl.config.sources import overlay, read_yaml
from accel_rl.errors import UsageError, unknown

PARTS = ("title", "settings", "grid", "seeds", "paper")
MEASURES = ("score", "steps_per_second", "hours")  # measures that a paper may report
SET_ELSEWHERE = {
    "seed": "name the seeds under `seeds`",
    "device": "name devices with --gpus or --devices",
    "devices": "name devices with --gpus or --devices",
    "learners_per_gpu": "use the flag --learners-per-gpu",
    "cpus": "name logical CPUs with --cpus",
}


@dataclass(frozen=True)
class Combination:
    """One row of the table: runs that differ only in their seeds."""

    values: dict[str, Any]  # all values that the file has for it
    varied: dict[str, Any]  # those that distinguish it from other combinations
    settings: dict[str, Any]  # the arguments of `accel-rl train`, without devices and seed

    @property
    def learners(self) -> int:
        return int(self.values.get("learners", 1))

    @property
    def name(self) -> str:
        parts = [value if isinstance(value, str) else f"{name}{value}" for name, value in self.varied.items()]
        return re.sub(r"[^\w.-]+", "_", "-".join(parts or [str(self.settings.get("algo", "a2c"))]))

    @property
    def family(self) -> str:
        """A text that is the same for the points of one curve over the number of learners."""
        return json.dumps({**self.values, "learners": None}, sort_keys=True, default=str)


@dataclass(frozen=True)
class ExperimentRun:
    combination: Combination
    seed: int

    @property
    def name(self) -> str:
        return f"{self.combination.name}-s{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.combination.settings, "seed": self.seed}


@dataclass(frozen=True)
class Paper:
    """The numbers that a paper reports."""

    source: str = ""
    steps: int | None = None
    rows: tuple[dict[str, Any], ...] = ()

    def numbers(self, combination: Combination) -> dict[str, float]:
        """Returns the paper's numbers for this combination, by measure."""
        rows = [row for row in self.rows if _matches(row, combination)]
        return {name: float(row[name]) for row in rows for name in MEASURES if name in row}


@dataclass(frozen=True)
class Experiment:
    """An experiment, as its file describes it."""

    title: str
    combinations: tuple[Combination, ...]
    seeds: tuple[int, ...]
    paper: Paper

    @property
    def runs(self) -> list[ExperimentRun]:
        """All runs, in the order in which they start."""
        return [run for combination in self.combinations for run in self.runs_of(combination)]

    def runs_of(self, combination: Combination) -> list[ExperimentRun]:
        return [ExperimentRun(combination, seed) for seed in self.seeds]


def read_experiment(path: Path, overrides: dict[str, Any] | None = None) -> Experiment:
    """Reads an experiment's file. overrides: settings for all runs, which replace the file's.

    Raises UsageError if the file is not an experiment's. Does not check that the settings exist and fit together, which
    depends on environments and algorithms."""
    values = read_yaml(path, "an experiment's parts")
    try:
        for part in values:
            if part not in PARTS:
                raise unknown("part", str(part), PARTS, f"(an experiment has {', '.join(PARTS)})")
        blocks = [
            mapping("grid", block) for block in _list_of(dict, "grid", values.get("grid"), "`- algo: [a2c, ppo]`")
        ]
        for name in overrides or {}:
            if any(name in block for block in blocks):
                raise UsageError(f"{name} is varied by the grid; omit {flag_of(name)}")
        settings = overlay(mapping("settings", values.get("settings")), overrides or {})
        combinations = tuple(combination for block in blocks for combination in _combinations(settings, block))
        title, seeds = str(values.get("title", path.stem)), read_seeds(values)
        experiment = Experiment(title, combinations, seeds, _paper(values.get("paper"), combinations))
        names = [run.name for run in experiment.runs]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"{names.count(name)} runs would have the name {name}; write a setting in which they differ as a "
                    "list, which makes it part of their names, as in `horizon: [5]`"
                )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return experiment


def _combinations(settings: dict[str, Any], block: dict[str, Any]) -> list[Combination]:
    for name in (*settings, *block):
        if name in SET_ELSEWHERE:
            raise UsageError(f"{name} cannot be set in an experiment; {SET_ELSEWHERE[name]}")
    for name, value in block.items():
        if value == []:
            raise UsageError(f"{name}: [] leaves no combination; give it at least one value")
    lists = [value if isinstance(value, list) else [value] for value in block.values()]
    return [_combination(settings, block, dict(zip(block, each, strict=True))) for each in itertools.product(*lists)]


def _combination(settings: dict[str, Any], block: dict[str, Any], own: dict[str, Any]) -> Combination:
    values = {**settings, **own}
    learners = integer("learners", values.get("learners", 1))
    for_train = {name: value for name, value in values.items() if name not in ("learners", "envs_per_learner")}
    if "envs_per_learner" in values:
        if "envs" in values:
            raise UsageError("envs and envs_per_learner contradict each other; omit one of them")
        for_train["envs"] = learners * integer("envs_per_learner", values["envs_per_learner"])
    varied = {name: value for name, value in own.items() if isinstance(block[name], list)}
    return Combination(values, varied, for_train)


def _paper(value: Any, combinations: tuple[Combination, ...]) -> Paper:
    parts = mapping("paper", value)
    for part in parts:
        if part not in ("source", "steps", "rows"):
            raise unknown("part of paper", str(part), ("source", "steps", "rows"))
    rows = _list_of(dict, "paper's rows", parts["rows"], "`- {algo: a2c, score: 20}`") if "rows" in parts else []
    for row in rows:
        numbers = {name: row[name] for name in MEASURES if name in row}
        are_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers.values())
        if not numbers or not are_numbers or any(each <= 0 for name, each in numbers.items() if name != "score"):
            raise UsageError(f"paper's row {row} must have at least one number: {', '.join(MEASURES)}")
        if not any(_matches(row, combination) for combination in combinations):
            raise UsageError(f"paper's row {row} matches no combination of the grid")
    steps = integer("paper's steps", parts["steps"]) if "steps" in parts else None
    if steps is None and any("hours" in row for row in rows):
        raise UsageError("paper's hours need the number of steps that they are for; set `steps`")
    return Paper(str(parts.get("source", "")), steps, tuple(rows))


def _matches(row: dict[str, Any], combination: Combination) -> bool:
    values = {"learners": 1, **combination.values}
    return all(name in values and values[name] == value for name, value in row.items() if name not in MEASURES)


def mapping(name: str, value: Any, example: str = "steps: 1000") -> dict[str, Any]:
    """Returns a part of a file if it maps names to values, {} if it is missing; else raises UsageError."""
    if value is None:
        return {}
    if not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise UsageError(f"{name}={value!r} must be a mapping of names, as in `{example}`")
    return value


def _list_of(kind: type, name: str, value: Any, example: str) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(item, kind) for item in value):
        raise UsageError(f"{name}={value!r} must be a list, as in {example}")
    return value


def read_seeds(values: dict[str, Any]) -> tuple[int, ...]:
    """Returns the seeds of a file's values; raises UsageError for anything else, and for a seed that is named twice."""
    listed = _list_of(object, "seeds", values.get("seeds", [0]), "[1, 2, 3]")
    seeds = tuple(integer("seeds", seed, least=0) for seed in listed)
    if len(seeds) > len({*seeds}):
        raise UsageError(f"seeds: {list(seeds)} names a seed twice")
    return seeds


def integer(name: str, value: Any, least: int = 1) -> int:
    """Returns a part of a file if it is an integer of at least this much; else raises UsageError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} must be an integer of at least {least}")
    return value
