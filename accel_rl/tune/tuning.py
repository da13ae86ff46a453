"""Searches the settings that train fastest on this machine, and writes them to a file."""

import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from accel_rl.bench.timing import Contestant
from accel_rl.config.sources import overlay, read_yaml
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.signals import StopSignal
from accel_rl.training.build import check
from accel_rl.training.out_of_memory import advice_on_memory
from accel_rl.training.resolve import Config, resolve
from accel_rl.training.run_directory import as_file_name
from accel_rl.tune.contestant import Training
from accel_rl.tune.options import TuneOptions
from accel_rl.tune.points import Point, Space, make_space
from accel_rl.tune.search import Found, Search
from accel_rl.tune.summary import comments, introduction, rate_of_pick, table, write_settings

Settings = dict[str, Any]

SHORT_DECORRELATION_STEPS = 100  # more cost seconds before the first turn, and nothing later
BUSY = 0.5  # load average
LEAST_REPLAY_SIZE = 5_000
LEAST_WARMUP_STEPS = 256
LEAST_AUXILIARY_REPLAY_STEPS = 100


def run(given: Settings, config_file: Path | None, options: TuneOptions) -> Path:
    """Searches, prints what was tried, writes the file of settings; returns its path.

    given: the user's settings, which all points share. Raises UsageError for settings that do not fit, and for a file
    that exists. When a signal ends it, nothing is written and no process is left."""
    load = os.getloadavg()[0]
    chosen = overlay(read_yaml(config_file, "settings") if config_file else {}, given)
    config = check(resolve(chosen))
    path = _find_path(config, options)
    space = plan_search(config, chosen, options)
    machine = format_machine(describe_machine())
    print(machine, f"logical CPUs {config.plan.topology}", *introduction(config, space), sep="\n", flush=True)
    if load > BUSY:
        print(f"load average {load:.1f} before the start: other programs use this machine, so all below is noisy")
    with StopSignal():
        found = search(config, chosen, space, options)
    print(*table(config, space, found), sep="\n")
    settings = settings_to_write(config, chosen, found.pick)
    write_settings(path, settings, comments(found, space, machine, str(config.plan.topology)))
    print(f"{path}: {found.pick}, {rate_of_pick(found):,.0f} steps/s\naccel-rl train --config {shlex.quote(str(path))}")
    return path


def plan_search(config: Config, chosen: Settings, options: TuneOptions) -> Space:
    """Returns what is searched. Raises UsageError for what cannot be tuned."""
    if config.rank_info.size > 1:
        raise UsageError(
            f"tune measures one learner, but there are {config.rank_info.size}: omit --devices and --learners-per-gpu"
        )
    if chosen.get("dynamic_adjustment") and config.queues.dynamic_adjustment:
        raise UsageError("dynamic_adjustment changes while running what tune looks for; omit it")
    return make_space(config, chosen.keys(), options.tune_envs)


def search(config: Config, chosen: Settings, space: Space, options: TuneOptions) -> Found:
    """Searches with trainings."""
    settings = {**chosen, **config.sampler_kind.fixed_for_tuning(config), **short_settings(config)}
    build = partial(build_training, settings, config.spec)
    return Search(space, build, options.seconds, options.minutes * 60).run(options.full_grid)


def build_training(settings: Settings, spec: EnvSpec, point: Point) -> Contestant:
    """Makes a warmed-up training with a point's settings and these besides."""
    config = check(resolve({**settings, **point.settings}, spec=spec))
    with advice_on_memory(config):
        training = Training(str(point), config)
        try:
            training.iterate_for(_warmup_steps(config) + 1)
        except BaseException:
            training.close()
            raise
    return training


def short_settings(config: Config) -> Settings:
    """Returns settings with which a training soon does what a long run does all the time, in little memory.

    Its schedules stay at their beginning. A replay is as small, and full or warm as early, as its batches allow."""
    run, algo = config.run, config.algo
    short: Settings = {"steps": 10**12, "decorrelation_steps": min(run.decorrelation_steps, SHORT_DECORRELATION_STEPS)}
    if hasattr(algo, "replay_size"):
        warmup = max(LEAST_WARMUP_STEPS, algo.batch_size + run.envs * algo.n_step)
        short["warmup_steps"] = min(algo.warmup_steps, warmup)
        short["replay_size"] = min(algo.replay_size, max(LEAST_REPLAY_SIZE, 2 * warmup, 64 * run.envs))
    if hasattr(algo, "auxiliary_replay_steps"):
        sequence = max(run.horizon, algo.auxiliary_sequence_steps or 0)
        steps = max(LEAST_AUXILIARY_REPLAY_STEPS, 2 * sequence)
        short["auxiliary_replay_steps"] = min(algo.auxiliary_replay_steps, steps)
    return short


def _warmup_steps(config: Config) -> int:
    """Returns the agent steps after which a training learns everything that it is to learn."""
    steps: int = getattr(config.algo, "warmup_steps", 0)
    if getattr(config.algo, "auxiliary", ("none",)) != ("none",):
        steps = max(steps, config.algo.auxiliary_replay_steps * config.run.envs)
    return steps


def settings_to_write(config: Config, chosen: Settings, pick: Point) -> Settings:
    """Returns the user's settings, as the values that they stand for, and those of the pick."""
    values = config.as_dict() | {"workers": config.run.workers, "envs_per_worker": config.run.envs_per_worker}
    names = ["algo", "env", *(name for name in chosen if name not in ("algo", "env"))]
    return {**{name: values[name] for name in names}, **config.sampler_kind.fixed_for_tuning(config), **pick.settings}


def _find_path(config: Config, options: TuneOptions) -> Path:
    """Returns where the settings will be written. Raises UsageError if they cannot be, or if the file exists."""
    path = options.out or Path(f"tuned-{as_file_name(config.run.algo)}-{as_file_name(config.run.env)}.yaml")
    if path.is_dir():
        raise UsageError(f"out={path} is a folder; name a file, as in --out {path / 'tuned.yaml'}")
    if path.exists() and not options.overwrite:
        raise UsageError(f"{path} exists; use --overwrite to replace it, or --out to write another file")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise UsageError(f"cannot write {path}: {parent} is no folder that can be written to; use --out")
    return path
