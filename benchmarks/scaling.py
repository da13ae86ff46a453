"""Measures how fast one agent trains with several learners, and where their time goes.

python benchmarks/scaling.py [--learners 2 4 8] [--full] [--json FILE] [--plot FILE.png]

A2C, rollouts of 5 steps; for each number of learners synchronous (all_reduce) and asynchronous (central_store):

    on GPUs    16 environments per learner, and the logical CPUs that each learner has when all GPUs learn. Efficiency
               is the rate of n learners over n times that of one
    on a CPU   16 environments in all. Efficiency is the rate of n learners, which share the logical CPUs, over that of
               one learner that uses them all

Every contestant is a run of its own whose learners are processes; runs take turns, and sleep in between. A turn is the
run's own loop (Trainer.run) without evaluations and checkpoints, until the first rollout that ends after the turn's
seconds. Rates are agent steps per second. Shares are parts of the learners' time as they report it (mean over
learners, median over rounds): exchange (with other learners, had all come at once), straggler (waiting for the last
learner to come), lock (waiting for chunks of the central store), between (between two rollouts: synchronous learners
agree whether to continue).
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Shares, Turns, alternate, format_ratio, ratio
from accel_rl.distributed.supervisor import started_learners
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.placement import show_plans
from accel_rl.hardware.topology import read_topology, show_cpus
from accel_rl.training.metrics import shares
from accel_rl.training.resolve import Config, resolve
from command_line import TurnOptions, add_json, add_overrides, add_turns, make_parser, run_program
from scaling_figure import LOST, draw_scaling

VERSION = 1  # of the JSON
NUM_ENVS = 16  # in all on a CPU, per learner on GPUs
MOST_ON_CPU = 8  # learners by default
UPDATES = ("all_reduce", "central_store")
BUDGET_S = 220.0  # start-up included
START_TIMEOUT_S, TURN_TIMEOUT_S = 300.0, 120.0  # the latter beyond the turn's seconds
TARGET = 0.85
LEARNER = "scaling_learner:main"  # what each learner's process runs
# No rows, evaluations or checkpoints in a turn; and a short decorrelation, which costs seconds at the start.
BARE = {
    "steps": 10**12,
    "log_interval_steps": 10**12,
    "checkpoint_interval_steps": 10**12,
    "eval_interval_steps": 0,
    "tensorboard": False,
    "decorrelation_steps": 100,
}

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
    env: str = "pong"
    device: str = "auto"
    learners: Sequence[int] | None = None
    plot: Path | None = None
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


class LearnersRun:
    """A run whose learners train in its turns, and sleep in between.

    Raises the RunError or UsageError of a learner that fails."""

    def __init__(self, name: str, settings: Settings):
        self.name, self.shares = name, Shares()
        self.config: Config = resolve({**BARE, **settings})
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="accel_rl_bench_")))
            started = started_learners(self.config, folder, None, False, program=LEARNER)
            self._learners, control = stack.enter_context(started)
            self._receive("ready", START_TIMEOUT_S)
            control.start()
            self._running = stack.pop_all()

    @property
    def num_learners(self) -> int:
        return self.config.rank_info.size

    def run(self, seconds: float) -> float:
        """Takes a turn; returns the sum of the learners' rates [steps/s], each by its own clock."""
        for learner in self._learners:
            learner.control.send(seconds)
        answers = self._receive("turn", seconds + TURN_TIMEOUT_S)
        self.shares = shares([report for _, report in answers])
        self.shares["between"] = 1 - self.shares["sample"] - self.shares["learn"]
        return float(sum(steps / report.wall_s for steps, report in answers))

    def _receive(self, expected: str, timeout_s: float) -> list[Any]:
        """Returns what each learner answers, which must be of the expected kind."""
        answers, deadline = [], time.monotonic() + timeout_s
        for learner in self._learners:
            if not learner.control.poll(max(0.0, deadline - time.monotonic())):
                raise RunError(f"learner {learner.rank} of {self.name} has not answered for {timeout_s:.0f} s")
            try:
                kind, answer = learner.control.recv()
            except (EOFError, ConnectionError):
                kind, answer = "died", f"exited with status {learner.process.wait()}"
            if kind != expected:
                learner.failure = (kind, answer)
                raise learner.error()
            answers.append(answer)
        return answers

    def close(self) -> None:
        self._running.close()


def contestants(options: ScalingOptions) -> dict[str, Settings]:
    """Returns the settings of each run by its name; the first run is the single learner."""
    common = {"algo": "a2c", "env": options.env, "horizon": 5, **options.overrides}
    found: dict[str, Settings] = {}
    for number in (1, *options.numbers):
        if options.on_gpus:
            where = {"devices": ",".join(f"cuda:{gpu}" for gpu in range(number)), "envs": NUM_ENVS * number}
            where["cpus"] = gpu_cpus(number, options.most)
        else:
            where = {"devices": ",".join(["cpu"] * number), "envs": NUM_ENVS}
        if number == 1:
            found["one"] = {**where, **common}
        else:
            found |= {f"{update}-{number}": {**where, "update": update, **common} for update in UPDATES}
    return found


def gpu_cpus(number: int, num_gpus: int) -> str:
    """Returns the logical CPUs that the first `number` learners have in a run on all GPUs."""
    devices = ",".join(f"cuda:{gpu}" for gpu in range(num_gpus))
    plans = resolve({**BARE, "devices": devices, "envs": NUM_ENVS * num_gpus}).plans
    return show_cpus(cpu for plan in plans[:number] for cpu in plan.topology.cpus)


def run(options: ScalingOptions) -> Result:
    """Runs the whole benchmark, prints its table and writes its files; returns what the JSON holds."""
    start = time.perf_counter()
    create_parents(options.json, options.plot)
    print(format_machine(describe_machine()))
    if not options.numbers:
        print("only one device: there is nothing to compare a single learner with")
    with ExitStack() as stack:
        runs = [stack.enter_context(closing(LearnersRun(*named))) for named in contestants(options).items()]
        turns = alternate(runs, options.schedule(BUDGET_S - (time.perf_counter() - start)), "scaling")
        points = [point(each, turns, options.on_gpus) for each in runs]
    config = runs[0].config
    envs = f"{NUM_ENVS} environments {'for each learner' if options.on_gpus else 'in all'}"
    result = {
        **describe_run("scaling", VERSION, options),
        "title": f"A2C on {config.run.env} ({config.run.env_preset}), {envs} x {config.run.horizon} steps",
        "on_gpus": options.on_gpus,
        "points": points,
    }
    show(result)
    if options.plot:
        draw_scaling(result, options.plot)
    write_json(options.json, result)
    return result


def point(contestant: LearnersRun, turns: dict[str, Turns], on_gpus: bool) -> Result:
    """Returns a row of the table. Efficiency: the rate over that of one learner, on GPUs over n times that of one."""
    mine, one, number = turns[contestant.name], turns["one"], contestant.num_learners
    config = contestant.config
    return {
        "name": contestant.name,
        "learners": number,
        "update": config.learners.update if number > 1 else None,
        "steps_per_second": mine.median,
        "rates": mine.rates,
        "efficiency": ratio(mine.rates, [rate * (number if on_gpus else 1) for rate in one.rates]),
        "at least": None if number == 1 else TARGET,
        "shares": mine.median_shares(),
        "plan": show_plans(config.devices, config.plans),
    }


def show(result: Result) -> None:
    """Prints the table."""
    print(f"\n{result['title']}; medians, with 95 % intervals")
    against = "n x one learner" if result["on_gpus"] else "one learner on all logical CPUs"
    print(f"{'':18}{'steps/s':>9}  {'/ ' + against:40}" + "".join(f"{name:>11}" for name in LOST))
    for point in result["points"]:
        efficiency = format_ratio(point["efficiency"])
        if point["at least"]:
            efficiency += f", should be at least {point['at least']}"
        lost = "".join(f"{point['shares'][n]:11.1%}" if n in point["shares"] else f"{'-':>11}" for n in LOST)
        print(f"{point['name']:18}{point['steps_per_second']:9,.0f}  {efficiency:40}{lost}")
    for point in result["points"]:
        for line in point["plan"]:
            print(f"{point['name']:18}{line}")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--env", default="pong", help="Atari game (pong)")
    parser.add_argument("--device", default="auto", help="cpu or cuda (auto: cuda where there are several GPUs)")
    parser.add_argument(
        "--learners",
        nargs="+",
        type=int,
        metavar="N",
        help=f"numbers of learners to compare with one (2, 4, ..., up to all GPUs, or {MOST_ON_CPU} logical CPUs)",
    )
    add_turns(parser, seconds=3.0)
    add_json(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure into FILE (.png)")
    add_overrides(parser, OVERRIDES)
    given: dict[str, Any] = vars(parser.parse_args())
    overrides = {name: value for name in OVERRIDES if (value := given.pop(name)) is not None}
    return run_program(lambda: run(ScalingOptions(**given, overrides=overrides)))


if __name__ == "__main__":
    sys.exit(main())
