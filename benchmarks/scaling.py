"""Measures how fast one agent trains with several learners on the CPU, and where their time goes.

python benchmarks/scaling.py [--learners 2 4 8] [--full] [--json FILE]

A2C on Pong, 16 environments in all, rollouts of 5 steps; for each number of learners synchronous (all_reduce) and
asynchronous (central_store). Efficiency is the rate of n learners, which share the logical CPUs, over the rate of one
learner that uses them all. For several GPUs, use gpu_session.py --parts scaling.

Every contestant is a run of `accel-rl train` that is stopped between its turns (training_run.py). Rates are agent steps
per second. Shares are parts of the learners' time, from the run's own figures (mean over learners, median over rounds):
exchange (with other learners, as if all arrived at once), straggler (waiting for the last learner), lock (waiting for
chunks of the central store), between (two rollouts: synchronous learners agree whether to continue).
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from accel_rl.bench.options import option
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Turns, alternate, format_ratio, ratio
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import read_topology
from command_line import TurnOptions, parse, run_program, seconds_option
from training_run import TrainingRun

VERSION = 2  # version of the JSON format
NUM_ENVS, HORIZON = 16, 5
ROW_ROLLOUTS = 5  # rollouts per row; a turn ends with a row
MAX_LEARNERS = 8  # largest default number of learners
UPDATES = ("all_reduce", "central_store")
LOST = ("exchange", "straggler", "lock", "between")  # shares of time that learners lose to each other
BUDGET_S = 220.0  # with start-up
TARGET = 0.85

Result = dict[str, Any]
Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(TurnOptions):
    """Options of the benchmark. Raises UsageError for a value out of range."""

    seconds: float = seconds_option(3.0)
    learners: Sequence[int] | None = option(
        None,
        f"numbers of learners to compare with one (2, 4, {MAX_LEARNERS}, as far as there are logical CPUs)",
        type=int,
        nargs="+",
        metavar="N",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        num_cpus = read_topology().num_busy
        for number in self.learners or ():
            if not 1 <= number <= num_cpus:
                raise UsageError(f"learners={number} must be from 1 to {num_cpus}, the number of logical CPUs")
            if NUM_ENVS % (2 * number):
                raise UsageError(
                    f"learners={number} does not divide {NUM_ENVS} environments in two groups evenly; use 2, 4 or 8"
                )

    @property
    def numbers(self) -> list[int]:
        """The numbers of learners to compare with one."""
        if self.learners:
            return sorted({*self.learners} - {1})
        return [number for number in (2, 4, MAX_LEARNERS) if number <= read_topology().num_busy]


def contestants(options: ScalingOptions) -> dict[str, Settings]:
    """Returns the flags of each run by its name; the first run is the single learner."""
    common = {"algo": "a2c", "horizon": HORIZON, "envs": NUM_ENVS, "device": "auto", "learner-timeout-s": 10**6}
    common["log-interval-steps"] = ROW_ROLLOUTS * HORIZON * NUM_ENVS
    found: dict[str, Settings] = {"one": {**common, "devices": "cpu"}}
    for number in options.numbers:
        devices = ",".join(["cpu"] * number)
        found |= {f"{update}-{number}": {**common, "devices": devices, "update": update} for update in UPDATES}
    return found


def run(options: ScalingOptions) -> Result:
    """Runs the whole benchmark, prints its table and writes its file; returns the contents of the JSON."""
    start = time.perf_counter()
    create_parents(options.json)
    print(format_machine(describe_machine()))
    if not options.numbers:
        print("no number of learners above 1 to compare with")
    named = contestants(options)
    with ExitStack() as stack:
        runs = [stack.enter_context(closing(TrainingRun(name, os.environ, named[name]))) for name in named]
        turns = alternate(runs, options.schedule(BUDGET_S - (time.perf_counter() - start)), "scaling")
    points = [point(name, turns, settings) for name, settings in named.items()]
    result = describe_run("scaling", VERSION, options) | {"points": points}
    show(result)
    write_json(options.json, result)
    return result


def point(name: str, turns: dict[str, Turns], settings: Settings) -> Result:
    """Returns a row of the table. Efficiency: the rate over that of one learner."""
    number, shares = len(settings["devices"].split(",")), turns[name].median_shares()
    return {
        "name": name,
        "learners": number,
        "update": settings.get("update"),
        "steps_per_second": turns[name].median,
        "rates": turns[name].rates,
        "efficiency": ratio(turns[name].rates, turns["one"].rates),
        "at least": None if number == 1 else TARGET,
        "shares": shares | {"between": 1 - shares["sample"] - shares["learn"]},
    }


def show(result: Result) -> None:
    """Prints the table."""
    print(f"\nA2C on pong, {NUM_ENVS} environments in all x {HORIZON} steps; medians, with 95 % intervals")
    print(f"{'':18}{'steps/s':>9}  {'/ one learner on all logical CPUs':40}" + "".join(f"{name:>11}" for name in LOST))
    for point in result["points"]:
        efficiency = format_ratio(point["efficiency"])
        if point["at least"]:
            efficiency += f", should be at least {point['at least']}"
        lost = "".join(f"{point['shares'][n]:11.1%}" if n in point["shares"] else f"{'-':>11}" for n in LOST)
        print(f"{point['name']:18}{point['steps_per_second']:9,.0f}  {efficiency:40}{lost}")


def main() -> None:
    run(parse(__doc__, ScalingOptions))


if __name__ == "__main__":
    sys.exit(run_program(main))
