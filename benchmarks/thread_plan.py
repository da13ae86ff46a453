"""Measures whether a run picks the fastest number of workers and threads for this machine, among a grid of them.

python benchmarks/thread_plan.py [--contests NAME ...] [--precisions float32 bfloat16] [--full] [--json FILE]

The contests are trainings on the CPU. On Pong, on the paper's frames with A3C-Net: a2c, 16 environments x 5 steps; ppo,
8 x 128; dqn, 32 x 4 in batches of 32. On vectors, with two layers of 256 units, on either side of where a second
learning thread begins to pay: small, A2C on CartPole, 16 x 8; medium, PPO on Walker2d, 16 x 128 in 8 minibatches. Each
has a grid for each precision:

    workers            one; one per core; two per core: as far as the environments divide
    sampling threads   1, 2, 4, ... up to the logical CPUs
    learning threads   the same
    server             where the operating system puts it; or, where the workers leave logical CPUs and the threads fit,
                       reserved: on those alone

First, a knock-out: all points of a grid take turns, and those that are clearly behind the fastest one (the whole 95 %
interval of their ratio is below 0.97) leave. Then a final: what a run picks by default (make_plan of
accel_rl/hardware/placement.py) against the fastest other point. Only the final's rounds count for the result, so the
luck that made a point the fastest has no part in it. Points wait for their turns asleep.

On 2 logical CPUs this takes about 15 minutes. With more of them, restrict the grid: --workers, --sampling-threads,
--learning-threads.
"""

import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Turns, alternate, format_ratio, ratio
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.instructions import read_instructions
from accel_rl.hardware.placement import Plan, default_workers, divides_evenly, make_plan
from accel_rl.hardware.topology import Cpus, CpuTopology, count, read_topology
from accel_rl.training.build import check
from accel_rl.training.resolve import resolve
from accel_rl.tune.knock_out import knock_out, strength
from command_line import TurnOptions, add_json, add_turns, check_names, make_parser, run_program
from training_contestants import Training
from training_contests import CONTESTS, Settings

VERSION = 1  # of the JSON
COMMON = {"env": "pong", "env_preset": "stooke", "network": "a3c", "device": "cpu"}
SHORT_REPLAY = {"replay_size": 5_000, "warmup_steps": 256}  # a process has as many replays as the grid has points
ON_VECTORS: Settings = {"device": "cpu", "network": "wide_tanh", "envs": 16, "learning_threads": None}
SETTINGS: dict[str, Settings] = {
    "a2c": {**CONTESTS["a2c"].settings, **COMMON},
    "ppo": {**CONTESTS["ppo"].settings, **COMMON},
    "dqn": {**CONTESTS["dqn"].settings, **SHORT_REPLAY, **COMMON},
    "small": {"algo": "a2c", "env": "CartPole-v1", "horizon": 8, **ON_VECTORS},
    "medium": {"algo": "ppo", "env": "Walker2d-v5", "horizon": 128, "minibatches": 8, **ON_VECTORS},
}
BUDGETS_S = {"a2c": 90.0, "ppo": 150.0, "dqn": 100.0, "small": 60.0, "medium": 60.0}  # of one precision
FINAL = 0.3  # its share of the time
PRECISIONS = ("float32", "bfloat16")
ENDS = {"median": "median", "low": "high", "high": "low"}  # of an interval that is turned around
MOST_PERCENT_BEHIND = 5  # the fastest other point

Result = dict[str, Any]
Axis = tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class ThreadPlanOptions(TurnOptions):
    """Options of the benchmark. workers, sampling_threads, learning_threads: the axes of the grid; None for those of
    the module's docstring. Raises UsageError for a value out of range."""

    seconds: float = 0.7
    contests: tuple[str, ...] = tuple(SETTINGS)
    precisions: tuple[str, ...] = PRECISIONS
    workers: Axis = None
    sampling_threads: Axis = None
    learning_threads: Axis = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("contest", self.contests, SETTINGS)
        check_names("precision", self.precisions, PRECISIONS)
        for what in ("workers", "sampling_threads", "learning_threads"):
            if any(value < 1 for value in getattr(self, what) or ()):
                raise UsageError(f"{what}={getattr(self, what)} must be at least 1 each")
        for contest in self.contests:
            envs = SETTINGS[contest]["envs"]
            for workers in self.workers or ():
                if not divides_evenly(envs, workers):
                    raise UsageError(f"workers={workers} do not divide the {envs} environments of {contest}; omit one")


# ---- the grid ----


@dataclass(frozen=True)
class Point:
    """A way to use the machine. server_cpus: that no worker uses, and where the server is alone; None: anywhere."""

    workers: int
    sampling_threads: int
    learning_threads: int
    server_cpus: Cpus | None = None

    def __str__(self) -> str:
        reserved = "" if self.server_cpus is None else ", server reserved"
        return f"{count(self.workers, 'worker')}, threads {self.sampling_threads} + {self.learning_threads}{reserved}"

    def plan(self, topology: CpuTopology, num_envs: int) -> Plan:
        threads = {"sampling_threads": self.sampling_threads, "learning_threads": self.learning_threads}
        plan = make_plan(topology, num_envs, self.workers, **threads)  # type: ignore[arg-type]
        return replace(plan, server_cpus=self.server_cpus) if self.server_cpus else plan


def point_of(plan: Plan) -> Point:
    """Returns the point of the grid that a plan is."""
    server_cpus = plan.server_cpus if plan.server_is_reserved else None
    return Point(len(plan.worker_cpus), plan.sampling_threads, plan.learning_threads, server_cpus)


def grid(topology: CpuTopology, num_envs: int, options: ThreadPlanOptions) -> list[Point]:
    """Returns all points, as the module's docstring lists them."""
    num_cores, num_cpus = len(topology.cores), topology.num_busy
    workers = options.workers or {default_workers(num_envs, num) for num in (1, num_cores, 2 * num_cores)}
    threads = {num for num in (*(2**power for power in range(num_cpus.bit_length())), num_cores) if num <= num_cpus}
    sampling, learning = (sorted(axis or threads) for axis in (options.sampling_threads, options.learning_threads))
    points = [Point(w, s, n) for w in sorted(workers) for s in sampling for n in learning]
    if not topology.can_pin:
        return points
    for num in sorted(workers):
        used = make_plan(topology, num_envs, num).worker_cpus
        left = tuple(cpu for cpu in topology.cpus if cpu not in used)
        points += [Point(num, s, n, left) for s in sampling for n in learning if max(s, n) <= len(left)]
    return points


# ---- its contestants ----


def run(options: ThreadPlanOptions) -> Result:
    """Measures all grids, prints their tables and writes the file; returns what the JSON holds."""
    create_parents(options.json)
    topology, instructions = read_topology(), read_instructions()
    print(format_machine(describe_machine()))
    print(f"{topology}\n{instructions}")
    grids: dict[str, Result] = {}
    for contest in options.contests:
        for precision in options.precisions:
            name = f"{contest}, {precision}"
            grids[name] = run_grid(contest, precision, topology, options)
            show(name, grids[name])
    about = {"topology": str(topology), "instructions": str(instructions), "grids": grids}
    result = {**describe_run("thread_plan", VERSION, options), **about}
    write_json(options.json, result)
    return result


def run_grid(contest: str, precision: str, topology: CpuTopology, options: ThreadPlanOptions) -> Result:
    """Returns the rates of a grid's points in the knock-out, and the final's result."""
    start = time.perf_counter()
    settings = {**SETTINGS[contest], "precision": "bf16" if precision == "bfloat16" else "float32"}
    pick, num_envs = point_of(check(resolve(settings)).plan), settings["envs"]
    points = {str(point): point for point in (pick, *grid(topology, num_envs, options))}
    if len(points) == 1:
        raise UsageError(f"the grid has one point, which is what a run picks: {pick}; name more workers or threads")
    label = f"{contest}, {precision}"
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for name, point in points.items():
            plan = None if point == pick else point.plan(topology, num_envs)
            contestants[name] = stack.enter_context(closing(Training(name, settings, plan)))
        whole = options.schedule(BUDGETS_S[contest])
        first = replace(whole, budget_s=whole.budget_s * (1 - FINAL) - (time.perf_counter() - start))
        turns = knock_out([*contestants.values()], str(pick), first, label)
        fastest = max(turns.keys() - {str(pick)}, key=lambda name: strength(turns[name]))
        last = replace(whole, budget_s=whole.budget_s - (time.perf_counter() - start))
        final = alternate([contestants[str(pick)], contestants[fastest]], last, f"{label}, final")
    return describe(points, str(pick), fastest, turns, final)


def describe(
    points: dict[str, Point], pick: str, fastest: str, turns: dict[str, Turns], final: dict[str, Turns]
) -> Result:
    """Returns a grid's part of the JSON."""
    described = {}
    for name, point in points.items():
        rates = turns[name].rates
        against_pick = ratio(rates, turns[pick].rates[: len(rates)])
        described[name] = {**asdict(point), "rates": rates, "median": turns[name].median, "/ pick": against_pick}
    compared = ratio(final[pick].rates, final[fastest].rates)
    return {
        "pick": pick,
        "fastest other": fastest,
        "points": described,
        "final": {name: turn.rates for name, turn in final.items()},
        "pick / fastest other": compared,
        "percent behind": {name: 100 * (1 - compared[end]) for name, end in ENDS.items()},
        "at most": MOST_PERCENT_BEHIND,
    }


def show(title: str, found: Result) -> None:
    """Prints one grid's table and the final's result."""
    print(f"\n{title}: the knock-out; medians, ratios with 95 % intervals")
    print(f"{'workers, threads sampling + learning':44}{'steps/s':>9}{'rounds':>8}   / pick")
    for name, point in sorted(found["points"].items(), key=lambda item: -item[1]["/ pick"]["median"]):
        against_pick = "the pick" if name == found["pick"] else format_ratio(point["/ pick"])
        print(f"{name:44}{point['median']:9,.0f}{len(point['rates']):8}   {against_pick}")
    print(f"final, {count(len(found['final'][found['pick']]), 'round')}: {_conclusion(found)}", flush=True)


def _conclusion(found: Result) -> str:
    """Returns the final's result as a sentence; percentages below 0 are those of the opposite."""
    median, low, high = (found["percent behind"][key] for key in ("median", "low", "high"))
    compared = f"{median:.1f} % ({low:.1f} to {high:.1f}) behind"
    if median < 0:
        compared = f"{-median:.1f} % ({-high:.1f} to {-low:.1f}) ahead of"
    return f"the pick is {compared} {found['fastest other']}; should be at most {found['at most']} % behind"


def main() -> int:
    parser = make_parser(__doc__)
    contests = " ".join(SETTINGS)
    parser.add_argument("--contests", nargs="+", default=tuple(SETTINGS), metavar="NAME", help=f"{contests} (all)")
    names = " ".join(PRECISIONS)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, metavar="NAME", help=f"{names} (both)")
    for name in ("workers", "sampling-threads", "learning-threads"):
        parser.add_argument(f"--{name}", nargs="+", type=int, metavar="N", help=f"numbers of {name.replace('-', ' ')}")
    add_turns(parser, seconds=0.7, budget="15 minutes")
    add_json(parser)
    given: dict[str, Any] = vars(parser.parse_args())
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return run_program(lambda: run(ThreadPlanOptions(**given)))


if __name__ == "__main__":
    sys.exit(main())
