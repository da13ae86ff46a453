"""How fast one agent trains with several learners, and where their time goes.

    python benchmarks/scaling.py [--learners 1 2 4] [--full] [--json FILE] [--plot FILE.png]

A2C, rollouts of 5 steps, for each number of learners synchronously (all_reduce) and asynchronously (central_store):

    on GPUs    16 environments for each learner, and the processors that each has when all GPUs learn. Efficiency is the
               rate of n learners over n times that of one
    on a CPU   16 environments in all. Efficiency is the rate of n learners, which share the processors, over that of
               one learner that uses them all

Every contestant is a run of its own whose learners are processes; runs take turns, and wait in between. A turn is the
run's own loop (Trainer.run) without evaluations and checkpoints, until the first rollout that ends after so many
seconds. Rates are agent steps per second; shares are what learners report of their time, their mean, medians over
rounds: exchange (with others, had all come at once), straggler (waiting for the last one to come), lock (waiting for
chunks of the central store), between (two rollouts: learners in step agree whether to go on).
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel_rl.bench.figure import LOST, draw_scaling
from accel_rl.bench.output import shown, write_json
from accel_rl.bench.timing import Schedule, Shares, Turns, alternate, ratio, show_ratio
from accel_rl.distributed.supervisor import started
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.placement import show_plans
from accel_rl.hardware.topology import read_machine, show_cpus
from accel_rl.training.metrics import shares
from accel_rl.training.resolve import Config, resolve

VERSION = 1  # of the JSON
NUM_ENVS = 16  # in all on a CPU, of each learner on GPUs
MOST_ON_CPU = 8  # learners by default
UPDATES = ("all_reduce", "central_store")
FULL_ROUNDS, BUDGET_S = 20, 220.0  # start-up included
START_TIMEOUT_S, TURN_TIMEOUT_S = 300.0, 120.0  # of a turn: beyond its seconds
TARGET = 0.85
PROGRAM = "accel_rl.bench.learner"
# What a turn does without: rows, evaluations and checkpoints; and the preset's decorrelation costs seconds once.
BARE = {
    "steps": 10**12,
    "log_interval_steps": 10**12,
    "checkpoint_interval_steps": 10**12,
    "eval_interval_steps": 0,
    "tensorboard": False,
    "decorrelation_steps": 100,
}

Result = dict[str, Any]
Settings = dict[str, Any]


@dataclass(frozen=True)
class ScalingOptions:
    """learners: numbers of them, beside one. seconds: of each contestant in a round; rollouts are finished.
    overrides: settings of all runs. Raises UsageError for a value out of range."""

    env: str = "pong"
    device: str = "auto"  # cpu or cuda (auto: cuda where there are several GPUs)
    learners: tuple[int, ...] | None = None  # 2, 4, ..., as many as there are GPUs, or processors up to MOST_ON_CPU
    seconds: float = 3.0
    rounds: int | None = None
    full: bool = False
    json: Path | None = None
    plot: Path | None = None
    overrides: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"device={self.device} must be auto, cpu or cuda")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} must be at least 1")
        if self.most == 0:
            raise UsageError("device=cuda: PyTorch finds no GPU here; use --device cpu")
        for number in self.learners or ():
            if not 1 <= number <= self.most:
                what = "GPUs" if self.on_gpus else "processors"
                raise UsageError(f"learners={number} must be from 1 to {self.most}, the {what} that there are")
            if not self.on_gpus and NUM_ENVS % (2 * number):
                raise UsageError(f"learners={number} must share {NUM_ENVS} environments in two groups; use 2, 4 or 8")

    @property
    def on_gpus(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.device_count() > 1)

    @property
    def most(self) -> int:
        """Learners that there is a device for."""
        return torch.cuda.device_count() if self.on_gpus else read_machine().num_busy

    @property
    def numbers(self) -> list[int]:
        """Of learners, beside one."""
        if self.learners:
            return sorted({*self.learners} - {1})
        if not self.on_gpus:
            return [number for number in (2, 4, 8) if number <= min(self.most, MOST_ON_CPU)]
        return sorted(
            {*(2**power for power in range(1, self.most.bit_length()) if 2**power < self.most), self.most} - {1}
        )

    def schedule(self, spent_s: float) -> Schedule:
        if self.rounds or self.full:
            return Schedule(self.seconds, self.rounds or FULL_ROUNDS)
        return Schedule(self.seconds, FULL_ROUNDS, BUDGET_S - spent_s)


class LearnersRun:
    """A run whose learners train while it is its turn, and sleep in between.

    Raises RunError, or UsageError, with what the learner says that has failed."""

    def __init__(self, name: str, settings: Settings):
        self.name, self.shares = name, Shares()
        self.config: Config = resolve({**BARE, **settings})
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="accel_rl_bench_")))
            self._learners, control = stack.enter_context(started(self.config, folder, None, False, PROGRAM))
            self._answers("ready", START_TIMEOUT_S)
            control.go()
            self._running = stack.pop_all()

    @property
    def num_learners(self) -> int:
        return self.config.rank_info.size

    def run(self, seconds: float) -> float:
        """The sum of the learners' rates, each by its own clock."""
        for learner in self._learners:
            learner.control.send(seconds)
        answers = self._answers("turn", seconds + TURN_TIMEOUT_S)
        self.shares = shares([report for _, report in answers])
        self.shares["between"] = 1 - self.shares["sample"] - self.shares["learn"]
        return float(sum(steps / report.wall for steps, report in answers))

    def _answers(self, expected: str, timeout_s: float) -> list[Any]:
        """What each learner says next."""
        answers, deadline = [], time.monotonic() + timeout_s
        for learner in self._learners:
            if not learner.control.poll(max(0.0, deadline - time.monotonic())):
                raise RunError(f"learner {learner.rank} of {self.name} has not answered for {timeout_s:.0f} s")
            try:
                kind, answer = learner.control.recv()
            except (EOFError, ConnectionError):
                kind, answer = "died", f"exited with status {learner.process.wait()}"
            if kind != expected:
                learner.trouble = (kind, answer)
                raise learner.error()
            answers.append(answer)
        return answers

    def close(self) -> None:
        self._running.close()


def contestants(options: ScalingOptions) -> dict[str, Settings]:
    """The settings of each run by its name; the first is the single learner."""
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
    """The processors of the first so many learners in a run on all GPUs."""
    devices = ",".join(f"cuda:{gpu}" for gpu in range(num_gpus))
    plans = resolve({**BARE, "devices": devices, "envs": NUM_ENVS * num_gpus}).plans
    return show_cpus(cpu for plan in plans[:number] for cpu in plan.machine.cpus)


def run(options: ScalingOptions) -> Result:
    """Runs and prints the whole benchmark, and writes its files; returns what the JSON holds."""
    start = time.perf_counter()
    for path in (options.json, options.plot):
        if path:  # now rather than after minutes of work
            path.parent.mkdir(parents=True, exist_ok=True)
    print(format_machine(describe_machine()))
    if not options.numbers:
        print("one device only: there is nothing to compare a single learner with")
    with ExitStack() as stack:
        runs: list[LearnersRun] = []
        for name, settings in contestants(options).items():
            runs.append(LearnersRun(name, settings))
            stack.callback(runs[-1].close)
        turns = alternate(runs, options.schedule(time.perf_counter() - start), "scaling")
        points = [point(each, turns, options.on_gpus) for each in runs]
    config = runs[0].config
    envs = f"{NUM_ENVS} environments {'for each learner' if options.on_gpus else 'in all'}"
    result = {
        "benchmark": "scaling",
        "version": VERSION,
        "machine": describe_machine(),
        "options": shown(options),
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
    """A row of the table. Efficiency: against one learner, and on GPUs as many times one."""
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
    against = "n x one learner" if result["on_gpus"] else "one learner that uses all processors"
    print(f"{'':18}{'steps/s':>9}  {'/ ' + against:40}" + "".join(f"{name:>11}" for name in LOST))
    for point in result["points"]:
        efficiency = show_ratio(point["efficiency"])
        if point["at least"]:
            efficiency += f", at least {point['at least']}"
        lost = "".join(f"{point['shares'][n]:11.1%}" if n in point["shares"] else f"{'-':>11}" for n in LOST)
        print(f"{point['name']:18}{point['steps_per_second']:9,.0f}  {efficiency:40}{lost}")
    for point in result["points"]:
        for line in point["plan"]:
            print(f"{point['name']:18}{line}")
