"""What `accel-rl tune` prints, and the file of settings that it writes."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from accel_rl.bench.timing import format_ratio
from accel_rl.hardware.placement import serves_both_groups
from accel_rl.hardware.topology import count
from accel_rl.training.resolve import Config
from accel_rl.tune.points import Point, Space
from accel_rl.tune.search import Found


def introduction(config: Config, space: Space) -> Iterator[str]:
    """Yields lines on what is searched, and what not."""
    run = config.run
    yield f"{run.algo} on {run.env}, {run.sampler} sampler, {run.envs} environments x {run.horizon} steps, {run.device}"
    yield f"default    {space.start}"
    for name, axis in space.axes.items():
        yield f"to try     {name} {' '.join(map(str, axis.coarse))}"
    yield config.sampler_kind.note_on_envs(config, "envs" in space.axes)


def table(config: Config, space: Space, found: Found) -> Iterator[str]:
    """Yields lines: each point with its median rate and its ratio to the default, the fastest first; what was left out;
    the final and its result."""
    width = max(len(str(point)) for point in (*found.trials, *found.skipped))
    grouped = config.sampler_kind.shows_groups
    groups = " groups" if grouped else ""
    yield f"\n{'point':{width}}{groups}  steps/s  rounds   / default, with 95 % intervals"
    ranked = sorted(found.trials.items(), key=lambda item: -item[1].ratio["median"])
    for point, trial in ranked:
        each = f"{_groups_of_worker(config, point):7}" if grouped else ""
        compared = "the default" if point == space.start else format_ratio(trial.ratio)
        yield f"{point!s:{width}}{each}{statistics.median(trial.rates):9,.0f}{len(trial.rates):8}   {compared}"
    for point, reason in found.skipped.items():
        yield f"{point!s:{width}}  skipped: {reason}"
    if found.unsearched:
        yield f"no time was left for {' and '.join(found.unsearched)}: raise --minutes"
    if grouped:
        yield "groups: those that a worker serves"
    yield conclusion(space, found)


def conclusion(space: Space, found: Found) -> str:
    """Returns the final's results, a line for each finalist."""
    if not found.final:
        return f"\nthe default is the fastest: {space.start}"
    finalists = [point for point in found.final if point != space.start]
    lines = [f"{point} / default = {format_ratio(found.against_default(point))}" for point in finalists]
    if found.pick == space.start:
        lines.append("none is faster to speak of, so the default stays")
    elif found.against_default(found.pick)["low"] <= 1:
        lines.append("the fastest may be no faster than the default; more --minutes would tell")
    rounds = count(len(found.final[space.start].rates), "round")
    return "\n".join([f"\nfinal, {rounds}:", *lines])


def rate_of_pick(found: Found) -> float:
    """Returns the median rate [steps/s] of what was picked, in the final where there was one."""
    rates = found.final[found.pick].rates if found.final else found.trials[found.pick].rates
    return statistics.median(rates)


def write_settings(path: Path, settings: dict[str, Any], comments: list[str]) -> None:
    """Writes a file for --config."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"# {line}\n" for line in comments) + yaml.safe_dump(settings, sort_keys=False))


def comments(found: Found, space: Space, machine: str, topology: str) -> list[str]:
    """Returns what the file of settings says above them: where they were found, and how fast they were."""
    lines = [f"found by `accel-rl tune` on {machine}", f"logical CPUs {topology}"]
    rate = f"{rate_of_pick(found):,.0f} steps/s"
    if found.pick == space.start:
        return [*lines, f"{rate}: what a run picks by default; nothing else was faster to speak of"]
    rounds = count(len(found.final[found.pick].rates), "round")
    return [
        *lines,
        f"{rate}: {format_ratio(found.against_default(found.pick))} times the default ({space.start}), {rounds}",
    ]


def _groups_of_worker(config: Config, point: Point) -> int:
    settings = point.settings
    envs, workers = settings.get("envs", config.run.envs), settings.get("workers", config.workers)
    return 2 if serves_both_groups(envs, workers) else 1
