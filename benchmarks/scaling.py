"""Measures how fast one agent trains with several learners, and where their time goes.

python benchmarks/scaling.py [--learners 2 4 8] [--full] [--json FILE]

A2C on Pong, rollouts of 5 steps; for each number of learners synchronous (all_reduce) and asynchronous (central_store):

    on GPUs    16 environments per learner, and the logical CPUs that each learner has when all GPUs learn. Efficiency
               is the rate of n learners over n times that of one
    on a CPU   16 environments in all. Efficiency is the rate of n learners, which share the logical CPUs, over that of
               one learner that uses them all

Every contestant is a run of `accel-rl train`, which is stopped between its turns (training_run.py). Rates are agent
steps per second. Shares are parts of the learners' time as the run reports it (mean over learners, median over rounds):
exchange (with other learners, had all come at once), straggler (waiting for the last learner to come), lock (waiting
for chunks of the central store), between (between two rollouts: synchronous learners agree whether to continue).
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import torch

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Turns, alternate, format_ratio, ratio
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import read_topology, show_cpus
from accel_rl.training.resolve import resolve
from command_line import TurnOptions, add_json, add_overrides, add_turns, make_parser, run_program
from training_run import TrainingRun

VERSION = 2  # of the JSON
NUM_ENVS, HORIZON = 16, 5  # environments: in all on a CPU, per learner on GPUs
ROW_ROLLOUTS = 5  # between two rows, at which turns end
MOST_ON_CPU = 8  # learners by default
UPDATES = ("all_reduce", "central_store")
LOST = ("exchange", "straggler", "lock", "between")  # shares of their time that learners lose to each other
BUDGET_S = 220.0  # start-up included
TARGET = 0.85
OVERRIDES = {
    "workers": "simulator processes of each run (one per logical CPU)",
    "sampling_threads": "threads of each network while sampling",
    "learning_threads": "threads of each network while learning",
    "chunks": "chunks of the central store (3)",
}

Result = dict[str, Any]
Settings = dict[str, Any]


@dataclass(frozen=True)
class ScalingOptions(TurnOptions):
    """Options of the benchmark.

    device: cpu or cuda (auto: cuda where there are several GPUs). learners: numbers of learners to compare with one
    (None: 2, 4, ..., up to all GPUs, or all logical CPUs and MOST_ON_CPU). overrides: settings of all runs. Raises
    UsageError for a value out of range."""

    seconds: float = 3.0
    device: str = "auto"
    learners: Sequence[int] | None = None
    overrides: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"device={self.device} must be auto, cpu or cuda")
        if self.most == 0:
            raise UsageError("device=cuda: PyTorch finds no GPU on this machine; use --device cpu")
        for number in self.learners or ():
            if not 1 <= number <= self.most:
                what = "GPUs" if self.on_gpus else "logical CPUs"
                raise UsageError(f"learners={number} must be from 1 to {self.most}, the number of {what}")
            if not self.on_gpus and NUM_ENVS % (2 * number):
                raise UsageError(
                    f"learners={number} does not divide {NUM_ENVS} environments in two groups evenly; use 2, 4 or 8"
                )

    @property
    def on_gpus(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.device_count() > 1)

    @property
    def most(self) -> int:
        """The largest number of learners that have a device."""
        return torch.cuda.device_count() if self.on_gpus else read_topology().num_busy

    @property
    def numbers(self) -> list[int]:
        """The numbers of learners to compare with one."""
        if self.learners:
            return sorted({*self.learners} - {1})
        if not self.on_gpus:
            return [number for number in (2, 4, 8) if number <= min(self.most, MOST_ON_CPU)]
        return sorted({*(2**power for power in range(1, self.most.bit_length())), self.most} - {1})


def contestants(options: ScalingOptions) -> dict[str, Settings]:
    """Returns the flags of each run by its name; the first run is the single learner."""
    common = {"algo": "a2c", "horizon": HORIZON, "device": "auto", "learner-timeout-s": 10**6}
    common |= {name.replace("_", "-"): value for name, value in options.overrides.items()}
    found: dict[str, Settings] = {}
    for number in (1, *options.numbers):
        devices = [f"cuda:{gpu}" for gpu in range(number)] if options.on_gpus else ["cpu"] * number
        envs = NUM_ENVS * (number if options.on_gpus else 1)
        where = {"devices": ",".join(devices), "envs": envs, "log-interval-steps": ROW_ROLLOUTS * HORIZON * envs}
        if options.on_gpus:
            where["cpus"] = gpu_cpus(number, options.most)
        if number == 1:
            found["one"] = {**where, **common}
        else:
            found |= {f"{update}-{number}": {**where, "update": update, **common} for update in UPDATES}
    return found


def gpu_cpus(number: int, num_gpus: int) -> str:
    """Returns the logical CPUs that the first `number` learners have in a run on all GPUs."""
    devices = ",".join(f"cuda:{gpu}" for gpu in range(num_gpus))
    plans = resolve({"env": "pong", "devices": devices, "envs": NUM_ENVS * num_gpus}).plans
    return show_cpus(cpu for plan in plans[:number] for cpu in plan.topology.cpus)


def run(options: ScalingOptions) -> Result:
    """Runs the whole benchmark, prints its table and writes its file; returns what the JSON holds."""
    start = time.perf_counter()
    create_parents(options.json)
    print(format_machine(describe_machine()))
    if not options.numbers:
        print("only one device: there is nothing to compare a single learner with")
    named = contestants(options)
    with ExitStack() as stack:
        runs = [stack.enter_context(closing(TrainingRun(name, os.environ, named[name]))) for name in named]
        turns = alternate(runs, options.schedule(BUDGET_S - (time.perf_counter() - start)), "scaling")
    points = [point(name, turns, settings, options.on_gpus) for name, settings in named.items()]
    result = describe_run("scaling", VERSION, options) | {"on_gpus": options.on_gpus, "points": points}
    show(result)
    write_json(options.json, result)
    return result


def point(name: str, turns: dict[str, Turns], settings: Settings, on_gpus: bool) -> Result:
    """Returns a row of the table. Efficiency: the rate over that of one learner, on GPUs over n times that of one."""
    number, shares = len(settings["devices"].split(",")), turns[name].median_shares()
    return {
        "name": name,
        "learners": number,
        "update": settings.get("update"),
        "steps_per_second": turns[name].median,
        "rates": turns[name].rates,
        "efficiency": ratio(turns[name].rates, [rate * (number if on_gpus else 1) for rate in turns["one"].rates]),
        "at least": None if number == 1 else TARGET,
        "shares": shares | {"between": 1 - shares["sample"] - shares["learn"]},
    }


def show(result: Result) -> None:
    """Prints the table."""
    where = "for each learner" if result["on_gpus"] else "in all"
    print(f"\nA2C on pong, {NUM_ENVS} environments {where} x {HORIZON} steps; medians, with 95 % intervals")
    against = "n x one learner" if result["on_gpus"] else "one learner on all logical CPUs"
    print(f"{'':18}{'steps/s':>9}  {'/ ' + against:40}" + "".join(f"{name:>11}" for name in LOST))
    for point in result["points"]:
        efficiency = format_ratio(point["efficiency"])
        if point["at least"]:
            efficiency += f", should be at least {point['at least']}"
        lost = "".join(f"{point['shares'][n]:11.1%}" if n in point["shares"] else f"{'-':>11}" for n in LOST)
        print(f"{point['name']:18}{point['steps_per_second']:9,.0f}  {efficiency:40}{lost}")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="auto", help="cpu or cuda (auto: cuda where there are several GPUs)")
    numbers = f"numbers of learners to compare with one (2, 4, ..., up to all GPUs, or {MOST_ON_CPU} logical CPUs)"
    parser.add_argument("--learners", nargs="+", type=int, metavar="N", help=numbers)
    add_turns(parser, seconds=3.0)
    add_json(parser)
    add_overrides(parser, OVERRIDES)
    given: dict[str, Any] = vars(parser.parse_args())
    overrides = {name: value for name in OVERRIDES if (value := given.pop(name)) is not None}
    return run_program(lambda: run(ScalingOptions(**given, overrides=overrides)))


if __name__ == "__main__":
    sys.exit(main())
