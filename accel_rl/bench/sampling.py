"""Measures sampling against the simulation limit, and where the time goes.

    accel-rl bench sampling [--env pong] [--full] [--json FILE]

The first part is a comparison with --envs-per-core environments per core. The contestants:

    limit              one bare process per core that only simulates (limit.py)
    random             our sampler, random actions, rollouts of --horizon steps
    random-barrier     the same with a barrier every 5 steps: the rollout ends, and all workers pause
    inference-cpu      our sampler with A3C-Net choosing the actions
    inference-cuda:0   the same on each GPU. With enough cores, the action server has its own core, and limit-cuda:0 is
                       the limit of the remaining cores
    network-cpu        only the network, on the same batches, without environments; with the limit it gives the bound

benchmarks/sampling_peers.py in the repository compares our sampler with other vector environments.

The second part is Table 1 of Stooke & Abbeel 2018, section 5.2: samples/s with A3C-Net by number of simulators, with a
barrier every five steps (SYNC) and without (ASYNC). The third part is the data of their Figure 2, speed per core over
simulators per core. A curve's simulators and its action server share its number of cores. The dashed line is one bare
process on one core, the dotted line one bare process on each hyperthread of that core.

Shares of a turn's wall time, as `sampler.seconds` reports them:

    inference          the action server was busy: observations, network, writing actions, bookkeeping
    env_wait           the action server waited for environments
    action_wait        workers waited for actions (mean over the workers)
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accel_rl.bench.contestants import SamplerContestant, network_alone
from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.options import SamplingOptions
from accel_rl.bench.output import create_parents, describe_run, figure_path, first_cores, write_json
from accel_rl.bench.timing import Builder, Turns, compare, format_ratio, make_schedule, ratio, two_resource_bound
from accel_rl.envs import EnvConfig, make_simulator
from accel_rl.envs.games.atari import game_name
from accel_rl.envs.games.emulator_choice import choose_simulator
from accel_rl.errors import UsageError
from accel_rl.hardware.description import format_machine
from accel_rl.hardware.devices import find_device, num_gpus
from accel_rl.hardware.placement import MIN_CORES_TO_RESERVE_ONE, default_workers, divides_evenly, make_plan, pinned
from accel_rl.hardware.topology import Cpus, read_topology
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.samplers.base import SamplerConfig

VERSION = 3  # changes with the fields of the JSON
BARRIER_STEPS = 5
SIMS_PER_CORE = (2, 4, 8, 16)
COMPARISON_S, ROW_S = 90.0, 14.0  # time for the comparison and for each row of the table, without --full
DEFAULT_FIGURE = Path("results/sampling.png")

Row = dict[str, Any]


class Benchmark:
    """A comparison of one game's contestants on the chosen cores.

    Raises UsageError if the environments do not divide among groups and workers."""

    def __init__(self, options: SamplingOptions):
        self.options = options
        if game_name(options.env) is None:
            raise UsageError(f"env={options.env} is not an Atari game; `accel-rl list envs` lists them")
        env = EnvConfig(options.env, options.env_preset, simulator=options.simulator)
        self.env = replace(env, simulator=choose_simulator(env)[0])
        self.spec = make_simulator(self.env, np.random.SeedSequence(0)).spec
        self.device = find_device(options.device or "auto")
        self.cores = first_cores(options.cores)
        self.num_envs = options.envs_per_core * len(self.cores)
        workers = options.workers or default_workers(self.num_envs, sum(map(len, self.cores)))
        self.config = SamplerConfig(self.num_envs, options.horizon, workers)

    def _sampling(
        self, name: str, config: SamplerConfig, device: str | None, server_cpus: Cpus | None = None
    ) -> Callable[[], SamplerContestant]:
        """Returns our sampler as a contestant. device: the network's; None: random actions."""

        def build() -> SamplerContestant:
            policy = None if device is None else ActorCritic(self.spec).to(device)
            return SamplerContestant(name, self.env, self.spec, config, policy, device or "cpu", server_cpus)

        return build

    def _limit(self, name: str, num_envs: int, cpus: list[int]) -> Builder:
        return partial(SimulationLimit, self.env, num_envs, cpus, name)

    def _on_gpu(self, gpu: str) -> list[Builder]:
        """Returns our sampler with its network on this GPU, and the simulation limit of its workers' cores."""
        machine = read_topology()
        num_cores = len(machine.cores) - (len(machine.cores) >= MIN_CORES_TO_RESERVE_ONE)
        num_envs = self.options.envs_per_core * num_cores
        plan = make_plan(machine, num_envs, on_gpu=True)
        cpus = [cpu for cpu in plan.worker_cpus if cpu is not None]
        config = SamplerConfig(
            num_envs,
            self.options.horizon,
            len(plan.worker_cpus),
            worker_cpus=plan.worker_cpus,
            spin=plan.server_is_reserved,
        )
        return [
            self._limit(f"limit-{gpu}", num_envs, cpus),
            self._sampling(f"inference-{gpu}", config, gpu, plan.server_cpus),
        ]

    def random_contestant(self) -> SamplerContestant:
        """Returns the comparison's contestant "random": our sampler with random actions."""
        return self._sampling("random", self.config, None)()

    def compare(self) -> dict[str, Turns]:
        """Returns all contestants' turns by name."""
        options, long = self.options, self.config
        barrier = SamplerConfig(long.num_envs, BARRIER_STEPS, long.num_workers)
        builders: list[Builder] = [
            self._limit("limit", self.num_envs, [core[0] for core in self.cores]),
            self.random_contestant,
            self._sampling("random-barrier", barrier, None),
            self._sampling("inference-cpu", long, "cpu"),
            *(builder for index in range(num_gpus()) for builder in self._on_gpu(f"cuda:{index}")),
            partial(network_alone, self.spec, self.num_envs),
        ]
        schedule = make_schedule(options.seconds, options.rounds, options.full, COMPARISON_S)
        return compare(builders, schedule, "comparison")

    def table_and_curves(self) -> tuple[list[Row], list[Row]]:
        """Returns the rows of Table 1, and the points of Figure 2 with those of its dashed and dotted lines."""
        table: list[Row] = []
        points: list[Row] = []
        bare: dict[str, list[float]] = {}
        for num_cores in core_counts(len(self.cores), self.options.full):
            for per_core in SIMS_PER_CORE:
                turns = self._row(num_cores, per_core)
                if num_cores == len(self.cores):
                    table.append(table_row(num_cores, per_core, turns))
                points.append(figure_point("sampler", num_cores, per_core, turns["async"].median))
                for name in turns.keys() & {"process", "hyperthreads"}:
                    bare.setdefault(name, []).extend(turns[name].rates)
        lines = [figure_point(name, 1, None, statistics.median(rates)) for name, rates in sorted(bare.items())]
        return table, points + lines

    def _row(self, num_cores: int, per_core: int) -> dict[str, Turns]:
        """Compares sampling without a barrier, with one (on all cores only), and bare processes on the first cores."""
        options, cores = self.options, self.cores[:num_cores]
        whole = num_cores == len(self.cores)
        num_envs, workers = num_cores * per_core, options.workers if whole else None
        if not workers or not divides_evenly(num_envs, workers):
            workers = default_workers(num_envs, sum(map(len, cores)))  # these do
        horizons = {"sync": BARRIER_STEPS, "async": options.horizon} if whole else {"async": options.horizon}
        builders: list[Builder] = [
            self._sampling(name, SamplerConfig(num_envs, horizon, workers), self.device)
            for name, horizon in horizons.items()
        ]
        core = cores[0]
        builders.append(self._limit("process", per_core, core[:1]))
        if len(core) > 1:
            builders.append(self._limit("hyperthreads", per_core, core))
        schedule = make_schedule(options.seconds, options.rounds, options.full, ROW_S)
        with pinned(tuple(cpu for core in cores for cpu in core)):
            return compare(builders, schedule, f"{num_cores} cores, {per_core} simulators each")


def core_counts(num_cores: int, full: bool) -> list[int]:
    """Returns the numbers of cores for curves: all cores and, if full, 1, 2, 4, ..."""
    powers = [2**i for i in range(num_cores.bit_length()) if 2**i < num_cores]
    return [*powers, num_cores] if full else [num_cores]


def run(options: SamplingOptions) -> dict[str, Any]:
    """Runs the whole benchmark, prints its tables and writes its files; returns the content of its JSON file."""
    with pinned(tuple(cpu for core in first_cores(options.cores) for cpu in core)):
        figure = figure_path(options.figure, DEFAULT_FIGURE) if options.table else None
        benchmark = Benchmark(options)
        create_parents(options.json, figure)
        turns = benchmark.compare()
        table, points = benchmark.table_and_curves() if options.table else ([], [])
        resolved = {
            "simulator": benchmark.env.simulator,
            "device": benchmark.device,
            "workers": benchmark.config.num_workers,
            "envs": benchmark.num_envs,
        }
        result = describe_run("sampling", VERSION, options)
        result["options"] |= resolved
        result |= {
            "contestants": {
                name: {"steps_per_second": turn.median, "rates": turn.rates, "shares": turn.median_shares()}
                for name, turn in turns.items()
            },
            "ratios": ratios(turns),
            "table_1": table,
            "figure_2": points,
        }
    show(result)
    write_json(options.json, result)
    if figure:
        from accel_rl.bench.figure import draw_sampling

        draw_sampling(result, figure)
        print(f"figure          {figure}")
    return result


# ---- results ----


def ratios(turns: dict[str, Turns]) -> dict[str, dict[str, float]]:
    """Returns the ratios of contestants to the limit, and of inference-cpu to the bound."""
    rates = {name: turn.rates for name, turn in turns.items()}
    computed = {f"{name} / limit": ratio(rates[name], rates["limit"]) for name in rates if name != "limit"}
    bound = two_resource_bound(rates["limit"], rates["network-cpu"])
    computed["inference-cpu / bound"] = ratio(rates["inference-cpu"], bound)
    for gpu in [name.removeprefix("limit-") for name in rates if name.startswith("limit-")]:
        computed[f"inference-{gpu} / limit-{gpu}"] = ratio(rates[f"inference-{gpu}"], rates[f"limit-{gpu}"])
    return computed


def table_row(num_cores: int, per_core: int, turns: dict[str, Turns]) -> Row:
    """Returns one row of Table 1: samples/s of all cores together."""
    return {
        "simulators": num_cores * per_core,
        "per_core": per_core,
        "sync": turns["sync"].median,
        "async": turns["async"].median,
        "sync_over_async": ratio(turns["sync"].rates, turns["async"].rates),
    }


def figure_point(kind: str, cores: int, per_core: int | None, rate: float) -> Row:
    """Returns one point of Figure 2.

    kind: "sampler", or for a line: one bare "process", or bare processes on all "hyperthreads" of one core."""
    return {"kind": kind, "cores": cores, "per_core": per_core, "steps_per_second_per_core": rate / cores}


def show(result: dict[str, Any]) -> None:
    """Prints the content of the JSON file."""
    options, ratios = result["options"], result["ratios"]
    print(format_machine(result["machine"]))
    print(
        f"{options['env']} ({options['env_preset']}, simulator {options['simulator']}), "
        f"{options['envs']} environments, {options['workers']} workers; medians, with 95 % intervals"
    )
    print(f"\n{'':16}{'steps/s':>9}   {'of the limit':24}shares of time")
    for name, contestant in result["contestants"].items():
        share = format_ratio(ratios[f"{name} / limit"]) if name != "limit" else ""
        times = ", ".join(f"{share_name} {value:.2f}" for share_name, value in contestant["shares"].items())
        print(f"{name:16}{contestant['steps_per_second']:9,.0f}   {share:24}{times}")
    for name, value in ratios.items():
        if not name.endswith("/ limit"):
            print(f"{name:28}{format_ratio(value)}")
    if not result["table_1"]:
        return
    print(f"\nTable 1: samples/s with A3C-Net on {options['device']}, by number of simulators")
    print(f"{'simulators (per core)':24}{'SYNC':>9}{'ASYNC':>9}")
    for row in result["table_1"]:
        print(f"{row['simulators']} ({row['per_core']})".ljust(24) + f"{row['sync']:9,.0f}{row['async']:9,.0f}")
    print()
