"""Searches for the settings that train fastest on this machine, prints a table, and writes them to a file."""

import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from accel_rl.bench.timing import Contestant, format_ratio
from accel_rl.config.sources import dump_yaml
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError, count
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.signals import StopSignal
from accel_rl.run_folder.directory import as_file_name
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import check
from accel_rl.training.out_of_memory import advice_on_memory
from accel_rl.tune.points import Point, Space, make_space
from accel_rl.tune.search import Search, SearchResult
from accel_rl.tune.training import Training

Settings = dict[str, Any]

SHORT_DECORRELATION_STEPS = 100  # more would only delay the first turn
BUSY = 0.5  # load average
MIN_REPLAY_SIZE = 5_000
MIN_WARMUP_STEPS = 256
MIN_AUXILIARY_REPLAY_STEPS = 100


def run(chosen: Settings, minutes: float, seconds: float, tune_envs: bool, out: Path | None, overwrite: bool) -> Path:
    """Searches, prints the tried points, and writes the file of settings; returns its path.

    chosen: the user's settings, which all points share. Raises UsageError for settings that do not fit together, and
    for a file that exists. A signal ends it without a file and without leftover processes."""
    load, config = os.getloadavg()[0], check(resolve(chosen))
    path = _find_path(config, out, overwrite)
    space = make_space(config, {name for name, value in chosen.items() if value not in (None, "null")}, tune_envs)
    machine = [format_machine(describe_machine()), f"logical CPUs {config.plan.topology}"]
    print(*machine, *introduction(config, space), sep="\n", flush=True)
    if load > BUSY:
        print(f"load average {load:.1f} before the start: other programs use this machine, so all below is noisy")
    build = partial(build_training, {**chosen, **short_settings(config)}, config.spec)
    with StopSignal():
        result = Search(space, build, seconds, minutes * 60).run()
    print(*table(space, result), sep="\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    comments = [f"found by `accel-rl tune` on {machine[0]}", machine[1], verdict(space, result)]
    settings = dump_yaml(settings_to_write(config, chosen, result.pick))
    path.write_text("".join(f"# {line}\n" for line in comments) + settings)
    print(f"{path}: {result.pick}\naccel-rl train --config {shlex.quote(str(path))}")
    return path


def introduction(config: Config, space: Space) -> Iterator[str]:
    """Yields lines that say what is searched and what is not."""
    run = config.run
    yield f"{run.algo} on {run.env}, {run.sampler} sampler, {run.envs} environments x {run.horizon} steps, {run.device}"
    yield f"default    {space.start}"
    for name, axis in space.axes.items():
        yield f"to try     {name} {' '.join(map(str, axis.coarse))}"
    yield config.sampler_kind.note_on_envs(config, "envs" in space.axes)


def table(space: Space, result: SearchResult) -> Iterator[str]:
    """Yields a line for each point, with its median rate and its ratio to the default (the final's first); then what
    was left out, and the result."""
    width = max(len(str(point)) for point in (*result.trials, *result.skipped))
    yield f"\n{'point':{width}}  steps/s  rounds   / default, with 95 % intervals"
    in_final = {space.start, *result.finalists}
    for point in sorted(
        result.trials, key=lambda point: (point not in in_final, -result.trials[point].ratio["median"])
    ):
        rate, ratio, num_rounds = result.trials[point]
        compared = format_ratio(ratio) + (", final" if point in in_final else "")
        yield f"{point!s:{width}}{rate:9,.0f}{num_rounds:8}   {'the default' if point == space.start else compared}"
    for point, reason in result.skipped.items():
        yield f"{point!s:{width}}  skipped: {reason}"
    if result.unsearched:
        yield f"no time was left for {' and '.join(result.unsearched)}: raise --minutes"
    yield verdict(space, result)


def verdict(space: Space, result: SearchResult) -> str:
    """Returns a sentence on the pick's speed."""
    rate, ratio, num_rounds = result.trials[result.pick]
    if result.pick == space.start:
        return f"{rate:,.0f} steps/s: what a run picks by default; nothing else was clearly faster"
    unsure = "; it may be no faster, more --minutes would tell" if ratio["low"] <= 1 else ""
    of_default = f"{format_ratio(ratio)} times the default ({space.start}), {count(num_rounds, 'round')}"
    return f"{rate:,.0f} steps/s: {of_default}{unsure}"


def build_training(settings: Settings, spec: EnvSpec, point: Point) -> Contestant:
    """Builds a training with these settings and a point's, and runs it until all learning has begun."""
    config = check(resolve({**settings, **point.settings}, spec=spec))
    warmup_steps: int = getattr(config.algo, "warmup_steps", 0)
    if getattr(config.algo, "auxiliary", ("none",)) != ("none",):
        warmup_steps = max(warmup_steps, config.algo.auxiliary_replay_steps * config.run.envs)
    with advice_on_memory(config):
        training = Training(str(point), config)
        try:
            training.iterate_for(warmup_steps + 1)
        except BaseException:
            training.close()
            raise
    return training


def short_settings(config: Config) -> Settings:
    """Returns settings that bring a training to its steady state soon, in little memory.

    Schedules stay at their start. A replay is as small as its batches allow, and learning starts as early as they do.
    """
    run, algo = config.run, config.algo
    short = {**config.sampler_kind.fixed_for_tuning(config), "steps": 10**12}
    if run.compile == "auto":
        short["compile"] = "never"  # machine code that an earlier run left would fit some points only
    short["decorrelation_steps"] = min(run.decorrelation_steps, SHORT_DECORRELATION_STEPS)
    if hasattr(algo, "replay_size"):
        warmup = max(MIN_WARMUP_STEPS, algo.batch_size + run.envs * algo.n_step)
        short["warmup_steps"] = min(algo.warmup_steps, warmup)
        short["replay_size"] = min(algo.replay_size, max(MIN_REPLAY_SIZE, 2 * warmup, 64 * run.envs))
    if getattr(algo, "auxiliary", ("none",)) != ("none",):
        steps = max(MIN_AUXILIARY_REPLAY_STEPS, 2 * run.horizon, 2 * (algo.auxiliary_sequence_steps or 0))
        short["auxiliary_replay_steps"] = min(algo.auxiliary_replay_steps, steps)
    return short


def settings_to_write(config: Config, chosen: Settings, pick: Point) -> Settings:
    """Returns the user's settings, resolved to values, and those of the pick."""
    values = config.as_dict() | {"workers": config.run.workers, "envs_per_worker": config.run.envs_per_worker}
    names = ["algo", "env", *(name for name in chosen if name not in ("algo", "env"))]
    return {**{name: values[name] for name in names}, **config.sampler_kind.fixed_for_tuning(config), **pick.settings}


def _find_path(config: Config, out: Path | None, overwrite: bool) -> Path:
    """Returns the path for the settings. Raises UsageError if it cannot be written or exists."""
    path = out or Path(f"tuned-{as_file_name(config.run.algo)}-{as_file_name(config.run.env)}.yaml")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir() or not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise UsageError(f"cannot write {path}: it must be a file in a folder that can be written to; use --out FILE")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; use --overwrite to replace it, or --out to write another file")
    return path
