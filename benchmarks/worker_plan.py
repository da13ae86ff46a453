"""Compares the plan that a run on a CPU picks for itself with other plans, by whole trainings in turns.

python benchmarks/worker_plan.py [--runs CartPole-v1:ppo ...] [--compile always] [--full] [--json FILE]

Environments are stepped by the learner's own process (serial), by one worker, or by one on each logical CPU, with one
or two learning threads. Rates are agent steps per second of a training in its steady state.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import alternate, format_ratio, ratio
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import check
from accel_rl.tune.training import Training
from accel_rl.tune.tuning import short_settings
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program

VERSION = 1  # version of the JSON format
RUNS = (
    *(f"{env}:ppo" for env in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "HalfCheetah-v5", "Ant-v5")),
    *(f"{env}:dqn" for env in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "minigrid:MiniGrid-DoorKey-5x5-v0")),
)
BUDGET_S = 25.0  # for each run
WARM_UP = 10_000  # agent steps of PPO; an algorithm with a replay takes fewer

Settings = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class PlanOptions(TurnOptions):
    """Options of the benchmark. runs: as ENV:ALGO. compile, learning_threads: as in `accel-rl train`."""

    runs: Sequence[str] = RUNS
    compile: str = "never"
    learning_threads: Sequence[int] = (1, 2)


def run(options: PlanOptions) -> Result:
    """Measures all runs, prints their tables and writes the file, which keeps its other runs."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    before = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"runs": {}}
    result = {**describe_run("worker_plan", VERSION, options), "runs": before["runs"]}
    for name in options.runs:
        result["runs"][f"{name} {options.compile}"] = found = measure(name, options)
        show(name, found)
        write_json(options.json, result)
    return result


def measure(name: str, options: PlanOptions) -> Result:
    """Lets all plans of a run take turns."""
    env, _, algo = name.rpartition(":")
    settings: Settings = {"env": env, "algo": algo, "device": "cpu", "compile": options.compile}
    config = check(resolve(settings))
    pick = describe(config)
    settings |= short_settings(config)
    with ExitStack() as stack:
        trainings = []
        for plan in plans(config, options.learning_threads):
            planned = check(resolve({**settings, **plan}, spec=config.spec))
            trainings.append(stack.enter_context(closing(Training(describe(planned), planned))))
            trainings[-1].iterate_for(getattr(config.algo, "warmup_steps", WARM_UP) + 1)
        turns = alternate(trainings, options.schedule(BUDGET_S), name)
    best = max(turns, key=lambda plan: turns[plan].median)
    return {
        "step_us": round((config.spec.step_s or 0.0) * 1e6, 1),
        "envs": config.run.envs,
        "pick": pick,
        "best": best,
        "pick / best": ratio(turns[pick].rates, turns[best].rates),
        "steps_per_second": {plan: turn.median for plan, turn in turns.items()},
        "rates": {plan: turn.rates for plan, turn in turns.items()},
    }


def plans(config: Config, learning_threads: Sequence[int]) -> Iterator[Settings]:
    """Yields the settings of each plan, the run's own pick among them."""
    workers = sorted({1, config.workers, config.plan.topology.num_busy})
    samplers: list[Settings] = [{"sampler": "serial"}, *({"workers": num} for num in workers)]
    for plan in samplers:
        for threads in sorted({*learning_threads, config.plan.learning_threads}):
            yield {**plan, "learning_threads": threads}


def describe(config: Config) -> str:
    """Returns a plan as text."""
    where = f"{config.workers} workers" if config.workers else "serial"
    return f"{where}, learning threads {config.plan.learning_threads}"


def show(name: str, found: Result) -> None:
    print(f"\n{name}: {found['envs']} environments, {found['step_us']:.0f} us a step")
    for plan, rate in found["steps_per_second"].items():
        print(f"{plan:32}{rate:9,.0f}{'  the pick' if plan == found['pick'] else ''}")
    print(f"{'pick / best':32}{format_ratio(found['pick / best'])}", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="ENV:ALGO", help=f"({' '.join(RUNS)})")
    parser.add_argument("--compile", default="never", choices=("never", "always"), help="(never)")
    parser.add_argument("--learning-threads", type=int, nargs="+", default=(1, 2), metavar="N", help="(1 2)")
    add_turns(parser, seconds=0.5, budget=f"{BUDGET_S:.0f} seconds for each run")
    add_json(parser)
    run(PlanOptions(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(run_program(main))
