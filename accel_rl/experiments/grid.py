"""An experiment: a grid of settings and seeds, beside the numbers of a paper. This is what its YAML file says.

title: ...
settings: {env: breakout, steps: 50_000_000}    # of all runs, as of `accel-rl train`
grid:                                           # all combinations of each block's lists
  - algo: [a2c, ppo]                            # a list is varied, and part of the runs' names
    learners: [1, 2, 4, 8]                      # of a run, each on a device; 1 where nothing is said
    envs_per_learner: 16                        # a single value is not; this one stands for envs = learners x 16
seeds: [1, 2]                                   # a run of every combination with each of them
paper:
  source: Stooke & Abbeel 2018, Table 2
  steps: 50_000_000                             # that its hours are for
  rows:
    - {algo: a2c, learners: 1, hours: 3.8}      # or steps_per_second, or score; whatever runs the rest of it fits
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.config.sources import read_yaml
from accel_rl.errors import UsageError, unknown

PARTS = ("title", "settings", "grid", "seeds", "paper")
MEASURES = ("score", "steps_per_second", "hours")  # that a paper may have numbers of
SAID_ELSEWHERE = {
    "seed": "name the seeds under `seeds`",
    "device": "name devices with --gpus or --devices",
    "devices": "name devices with --gpus or --devices",
    "learners_per_gpu": "use the flag --learners-per-gpu",
    "cpus": "name processors with --cpus",
}


@dataclass(frozen=True)
class Combination:
    """One row of the table: runs that differ in nothing but their seeds."""

    values: dict[str, Any]  # as the file has them, for all runs and for this combination
    varied: dict[str, Any]  # those that set it apart
    settings: dict[str, Any]  # of `accel-rl train`, but for devices and seed

    @property
    def learners(self) -> int:
        return int(self.values.get("learners", 1))

    @property
    def name(self) -> str:
        parts = [value if isinstance(value, str) else f"{name}{value}" for name, value in self.varied.items()]
        return re.sub(r"[^\w.-]+", "_", "-".join(parts or [str(self.settings.get("algo", "a2c"))]))

    def is_but_for_learners(self, other: "Combination") -> bool:
        """Whether the two are points of one curve over the number of learners."""
        mine, others = ({**c.values, "learners": None} for c in (self, other))
        return mine == others


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
    source: str = ""
    steps: int | None = None
    rows: tuple[dict[str, Any], ...] = ()

    def numbers(self, combination: Combination) -> dict[str, float]:
        """Its measures of this combination."""
        rows = [row for row in self.rows if _fits(row, combination)]
        return {name: float(row[name]) for row in rows for name in MEASURES if name in row}


@dataclass(frozen=True)
class Experiment:
    title: str
    combinations: tuple[Combination, ...]
    seeds: tuple[int, ...]
    paper: Paper

    @property
    def runs(self) -> list[ExperimentRun]:
        """In the order in which they are to start."""
        return [run for combination in self.combinations for run in self.runs_of(combination)]

    def runs_of(self, combination: Combination) -> list[ExperimentRun]:
        return [ExperimentRun(combination, seed) for seed in self.seeds]


def read_experiment(path: Path, given: dict[str, Any] | None = None) -> Experiment:
    """given: settings for all runs that replace the file's. Raises UsageError for what is no such file.

    Whether the settings exist, and fit together, is not looked at here: the environments and algorithms decide."""
    values = read_yaml(path, "an experiment's parts")
    try:
        for part in values:
            if part not in PARTS:
                raise unknown("part", str(part), PARTS, f"(an experiment has {', '.join(PARTS)})")
        blocks = _list_of(dict, "grid", values.get("grid"))
        for name in given or {}:
            if any(name in block for block in blocks):
                raise UsageError(f"{name} is in the grid; leave --{name.replace('_', '-')} away")
        settings = {**_mapping("settings", values.get("settings")), **(given or {})}
        combinations = tuple(combination for block in blocks for combination in _combinations(settings, block))
        seeds = tuple(_count("seeds", seed, least=0) for seed in _list_of(int, "seeds", values.get("seeds", [0])))
        experiment = Experiment(
            str(values.get("title", path.stem)), combinations, seeds, _paper(values.get("paper"), combinations)
        )
        names = [run.name for run in experiment.runs]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"{names.count(name)} runs would be {name}; a setting that sets them apart must be a list "
                    "to be part of their names, as in `horizon: [5]`"
                )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return experiment


def _combinations(settings: dict[str, Any], block: dict[str, Any]) -> list[Combination]:
    for name in (*settings, *block):
        if name in SAID_ELSEWHERE:
            raise UsageError(f"{name} is no setting of an experiment; {SAID_ELSEWHERE[name]}")
    for name, value in block.items():
        if value == []:
            raise UsageError(f"{name}: [] leaves no combination; name a value")
    lists = [value if isinstance(value, list) else [value] for value in block.values()]
    return [_combination(settings, block, values) for values in itertools.product(*lists)]


def _combination(settings: dict[str, Any], block: dict[str, Any], chosen: tuple[Any, ...]) -> Combination:
    own = dict(zip(block, chosen, strict=True))
    values = {**settings, **own}
    learners = _count("learners", values.get("learners", 1))
    for_train = {name: value for name, value in values.items() if name not in ("learners", "envs_per_learner")}
    if "envs_per_learner" in values:
        if "envs" in values:
            raise UsageError("envs and envs_per_learner contradict each other; name one of them")
        for_train["envs"] = learners * _count("envs_per_learner", values["envs_per_learner"])
    varied = {name: value for name, value in own.items() if isinstance(block[name], list)}
    return Combination(values, varied, for_train)


def _paper(value: Any, combinations: tuple[Combination, ...]) -> Paper:
    parts = _mapping("paper", value)
    for part in parts:
        if part not in ("source", "steps", "rows"):
            raise unknown("part of paper", str(part), ("source", "steps", "rows"))
    rows = _list_of(dict, "paper's rows", parts["rows"]) if "rows" in parts else []
    for row in rows:
        numbers = {name: row[name] for name in MEASURES if name in row}
        if not numbers or not all(
            _is_number(value) and (value > 0 or name == "score") for name, value in numbers.items()
        ):
            raise UsageError(f"paper's row {row} must have a number: one of {', '.join(MEASURES)}")
        if not any(_fits(row, combination) for combination in combinations):
            raise UsageError(f"paper's row {row} fits no combination of the grid")
    steps = _count("paper's steps", parts["steps"]) if "steps" in parts else None
    if steps is None and any("hours" in row for row in rows):
        raise UsageError("paper's hours are for a number of steps; name it as `steps`")
    return Paper(str(parts.get("source", "")), steps, tuple(rows))


def _fits(row: dict[str, Any], combination: Combination) -> bool:
    values = {"learners": 1, **combination.values}
    return all(name in values and values[name] == value for name, value in row.items() if name not in MEASURES)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{name}={value!r} must be a mapping, as in `steps: 1000`")
    return value


def _list_of(kind: type, name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(item, kind) for item in value):
        example = "`- algo: [a2c, ppo]`" if kind is dict else "[1, 2, 3]"
        raise UsageError(f"{name}={value!r} must be a list, as in {example}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r} must be an integer of at least {least}")
    return value
