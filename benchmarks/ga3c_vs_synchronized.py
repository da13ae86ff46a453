"""Measures the queued sampler with GA3C beside the alternating sampler with A2C: same cores, network and game.

python benchmarks/ga3c_vs_synchronized.py [--networks ga3c ga3c_large_4 ...] [--full] [--json FILE] [--plots FOLDER]

For each network:

    grid         the queued sampler with all combinations of --agents, --predictors and --trainers, which take turns
                 in one training. Beside trainings/s (TPS) and predictions/s (PPS): the mean prediction batch, the mean
                 lengths of both queues, policy lag in updates, and the share of the logical CPUs' time in use
    final        the grid's fastest combination by steps/s; the alternating sampler with A2C, rollouts of the same
                 horizon, once with about as many steps per update as GA3C's batches have, and once with the number of
                 --envs that is the fastest in a trial; and the two-resource bound: with S the rate of simulation alone,
                 and N that of the network alone (predictions in batches of the mean size, and learning from batches of
                 the mean size), no schedule on the same cores exceeds 1/(1/S + 1/N). On a GPU, which has its own time,
                 the bound is min(S, N)
    adjustment   dynamic adjustment from one agent, predictor and trainer, in windows of --interval seconds; then what
                 it has accepted takes turns with the grid's fastest combination

Steps/s are those that were learned from. Contestants take turns and are stopped in between; only the final's turns
count for its ratios, so the luck that made a combination the grid's fastest has no part in them. --plots draws the
paper's Figures 2 (adjustment over time), 3 (TPS of the three fastest of each number of agents) and 4 (their queues).
"""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Turns, alternate, format_ratio, ratio, two_resource_bound
from accel_rl.envs.atari import game_name
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import available_cpus
from accel_rl.samplers.queued.adjustment import Counts
from accel_rl.training.resolve import Config, resolve
from command_line import TurnOptions, add_json, add_overrides, add_turns, make_parser, run_program
from ga3c_contestants import Point, Row, Settings, TrainingProcess, format_counts, median_row
from ga3c_figures import draw_adjustment, draw_queues, draw_speeds
from network_passes import Network

VERSION = 1  # of the JSON
NETWORKS = ("ga3c", "ga3c_large_4", "ga3c_large_3", "ga3c_large_2", "ga3c_large_1")  # the rows of Table 2
GRID_BUDGET_S, FINAL_BUDGET_S, ADJUSTMENT_S, LAST_BUDGET_S = 90.0, 50.0, 60.0, 20.0  # of each network, by default
FULL_ADJUSTMENT_S = 900.0
LAST_ROUNDS = 5  # of what the adjustment has accepted, at least
ENVS = (8, 16, 32, 64)  # of the alternating sampler
TARGETS = {"queued / bound": 0.60, "adjusted / grid's fastest": 0.90}
OVERRIDES = {
    "sampling_threads": "torch threads of each of GA3C's predictors",
    "learning_threads": "torch threads of GA3C's learning",
    "min_training_batch": "steps of GA3C's batches, at least",
}
COLUMNS = {  # of the grid's table: metric, title, format
    "steps_per_second": ("steps/s", ",.0f"),
    "trainings_per_second": ("TPS", ",.1f"),
    "predictions_per_second": ("PPS", ",.0f"),
    "prediction_batch": ("batch", ".1f"),
    "prediction_queue": ("pred.q", ".1f"),
    "training_queue": ("train.q", ".1f"),
    "policy_lag": ("lag", ".1f"),
    "policy_lag_95": ("95 %", ".0f"),
    "policy_lag_max": ("max", ".0f"),
    "cpu_share": ("CPU", ".0%"),
}

Axis = tuple[int, ...]
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GA3COptions(TurnOptions):
    """Options of the benchmark. networks: None for the paper's small one, or with `full` for all; agents: None for 2,
    4, 8 and 16 per logical CPU; interval_s: of dynamic adjustment; overrides: settings of the queued training. Raises
    UsageError for a value out of range."""

    env: str = "pong"
    algo: str = "ga3c"
    device: str = "cpu"
    networks: tuple[str, ...] | None = None
    agents: Axis | None = None
    predictors: Axis = (1, 2)
    trainers: Axis = (1, 2)
    envs: Axis = ENVS
    interval_s: float = 2.0
    plots: Path | None = None
    overrides: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("agents", "predictors", "trainers", "envs"):
            if (axis := getattr(self, name)) is not None and (not axis or min(axis) < 1):
                raise UsageError(f"{name}={list(axis)} must be one number or more, each at least 1")
        if not 0 < self.interval_s < float("inf"):
            raise UsageError(f"interval_s={self.interval_s} must be greater than 0")

    @property
    def all_networks(self) -> tuple[str, ...]:
        return self.networks or (NETWORKS if self.full else NETWORKS[:1])

    @property
    def grid(self) -> list[Counts]:
        agents = self.agents or tuple(len(available_cpus()) * number for number in (2, 4, 8, 16))
        return [Counts(*counts) for counts in product(agents, self.predictors, self.trainers)]

    @property
    def most(self) -> Counts:
        """The largest number of each in the grid, which is also dynamic adjustment's limit."""
        return Counts(*map(max, zip(*self.grid, strict=True)))

    def queued_settings(self, network: str) -> Settings:
        """Returns a queued training's settings; it starts with all agents, so that it has room for them."""
        agents, predictors, trainers = self.most
        counts = {"envs": agents, "max_agents": agents, "predictors": predictors, "trainers": trainers}
        queues = {"sampler": "queued", "dynamic_adjustment": False}  # which `run_adjustment` does by itself
        return {**self._common(network), "algo": self.algo, **queues, **counts, **self.overrides}

    def synchronized_settings(self, network: str, queued: Config, envs: int) -> Settings:
        """Returns the settings of A2C on the same frames with rollouts of the same horizon."""
        frames = {**queued.env.options} if game_name(self.env) else {}
        frames |= {"env_preset": queued.run.env_preset, "horizon": queued.run.horizon, "envs": envs}
        return {**self._common(network), "algo": "a2c", "sampler": "alternating", **frames}

    def _common(self, network: str) -> Settings:
        return {"env": self.env, "network": network, "device": self.device, "decorrelation_steps": 100}


def run(options: GA3COptions) -> Result:
    """Measures all networks, prints their tables, draws the plots and writes the file; returns what the JSON holds."""
    create_parents(options.json, options.plots and options.plots / "figure_2.png")
    print(format_machine(describe_machine()))
    networks: dict[str, Result] = {}
    for network in options.all_networks:
        networks[network] = run_network(network, options)
        show(network, networks[network])
    show_networks(networks)
    result = {**describe_run("ga3c_vs_synchronized", VERSION, options), "networks": networks}
    write_json(options.json, result)
    if options.plots:
        draw_adjustment(result, options.plots / "figure_2.png")
        draw_speeds(result, options.plots / "figure_3.png")
        draw_queues(result, options.plots / "figure_4.png")
    return result


def run_network(network: str, options: GA3COptions) -> Result:
    """Returns the grid, the final and the adjustment with one network."""
    settings = options.queued_settings(network)
    config = resolve(settings)
    with ExitStack() as stack:
        queued = TrainingProcess("queued", settings)
        stack.callback(queued.close)
        points = [Point(queued, counts) for counts in options.grid]
        alternate(points, options.schedule(GRID_BUDGET_S), f"{network}, grid")
        rows = {point.name: median_row(point.rows[1:]) for point in points}
        fastest = max(points, key=lambda point: rows[point.name]["steps_per_second"])
        final = run_final(network, queued, fastest.counts, rows[fastest.name], config, options)
        adjustment = run_adjustment(network, queued, fastest.counts, config, options)
    grid = [{**point.counts._asdict(), **rows[point.name]} for point in points]
    return {"grid": grid, "fastest": fastest.counts, "final": final, "adjustment": adjustment}


def run_final(
    network: str, process: TrainingProcess, counts: Counts, row: Row, config: Config, options: GA3COptions
) -> Result:
    """Lets the grid's fastest point, the alternating sampler, simulation alone and the network alone take turns."""
    start = time.perf_counter()
    batch = row["steps_per_second"] / row["trainings_per_second"]
    with ExitStack() as stack:
        rivals = start_synchronized(network, config, batch, options, stack)
        simulation = SimulationLimit(config.env, counts.agents, name="simulation")
        stack.callback(simulation.close)
        alone = Network(options.queued_settings(network), row["prediction_batch"], batch)
        stack.callback(alone.close)
        queued = Point(process, counts, "queued")
        contestants: list[Contestant] = [queued, *rivals, simulation, alone]
        left_s = FINAL_BUDGET_S - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), f"{network}, final")
        rounds = len(turns["queued"].rates)
        measured = {queued.name: median_row(queued.rows[-rounds:])}
        measured |= {rival.name: median_row(rival.rows[-rounds:]) for rival in rivals}
    return describe_final(turns, measured, on_gpu=options.device != "cpu")


def start_synchronized(
    network: str, config: Config, batch: float, options: GA3COptions, stack: ExitStack
) -> list[TrainingProcess]:
    """Returns A2C with about as many steps per update as the queued training, and with the fastest number of --envs.

    Numbers of environments that do not divide over the workers are left out."""
    alike = max(2, 2 * round(batch / config.run.horizon / 2))
    running: dict[int, TrainingProcess] = {}
    for envs in dict.fromkeys((alike, *options.envs)):
        settings = options.synchronized_settings(network, config, envs)
        running[envs] = TrainingProcess(f"alternating, {envs} envs", settings)
        stack.callback(running[envs].close)
    rates: dict[int, float] = {}
    for _ in range(2):  # the first turn is for warm-up
        rates = {envs: process.run(options.seconds) for envs, process in running.items()}
    fastest = max(rates, key=lambda envs: rates[envs])
    return [running[envs] for envs in dict.fromkeys((alike, fastest))]


def describe_final(turns: dict[str, Turns], measured: dict[str, Row], on_gpu: bool) -> Result:
    """Returns the final's part of the JSON: measurements, rates [steps/s], and ratios with intervals."""
    simulation, network, queued = (turns[name].rates for name in ("simulation", "network", "queued"))
    bound = [*map(min, simulation, network)] if on_gpu else two_resource_bound(simulation, network)
    rates = {**{name: turn.rates for name, turn in turns.items()}, "bound": bound}
    ratios = {f"{name} / queued": ratio(rates[name], queued) for name in measured if name != "queued"}
    return {"measured": measured, "rates": rates, "ratios": {**ratios, "queued / bound": ratio(queued, bound)}}


def run_adjustment(
    network: str, process: TrainingProcess, fastest: Counts, config: Config, options: GA3COptions
) -> Result:
    """Returns the windows of dynamic adjustment from 1/1/1, and its result against the grid's fastest point."""
    seconds = FULL_ADJUSTMENT_S if options.full else ADJUSTMENT_S
    objective = config.queues.adjustment_objective
    arguments = {"interval_s": options.interval_s, "objective": objective}
    found = process.adjust(seconds, start=(1, 1, 1), limits=options.most, **arguments)
    metric = f"{objective}_per_second"
    adjusted, best = Point(process, Counts(*found["accepted"]), "adjusted"), Point(process, fastest, "grid's fastest")
    schedule = replace(options.schedule(LAST_BUDGET_S), least_rounds=LAST_ROUNDS)
    alternate([adjusted, best], schedule, f"{network}, adjusted")
    rates = {point.name: [row[metric] for row in point.rows[1:]] for point in (adjusted, best)}
    compared = ratio(rates["adjusted"], rates["grid's fastest"])
    return {**found, "objective": metric, "rates": rates, "ratios": {"adjusted / grid's fastest": compared}}


def show(network: str, found: Result) -> None:
    """Prints one network's tables."""
    print(f"\n{network}: agents/predictors/trainers; medians, fastest first")
    print(" " * 14 + "".join(f"{title:>9}" for title, _ in COLUMNS.values()))
    for row in sorted(found["grid"], key=lambda row: -row["steps_per_second"]):
        counts = format_counts([row[name] for name in Counts._fields])
        print(f"{counts:14}" + "".join(f"{row.get(name, float('nan')):9{form}}" for name, (_, form) in COLUMNS.items()))
    adjustment = found["adjustment"]
    print(f"\nfinal, with {format_counts(found['fastest'])}; 95 % intervals")
    for name, value in {**found["final"]["ratios"], **adjustment["ratios"]}.items():
        target = f", should be at least {TARGETS[name]:.2f}" if name in TARGETS else ""
        print(f"{name:34}{format_ratio(value)}{target}")
    windows = adjustment["windows"]
    print(f"dynamic adjustment: {format_counts(adjustment['accepted'])} after {len(windows)} windows", flush=True)


def show_networks(networks: dict[str, Result]) -> None:
    """Prints a table like the paper's Table 2, whose A3C is the alternating sampler here: its fastest contestant."""
    print(f"\n{'PPS':16}{'A2C':>9}{'queued':>9}   {'queued / A2C':26}{'CPU, A2C':>10}{'CPU, queued':>13}")
    for network, found in networks.items():
        measured, rates = found["final"]["measured"], found["final"]["rates"]
        fastest = fastest_rival(measured)
        compared = format_ratio(ratio(rates["queued"], rates[fastest]))
        speeds = (measured[fastest]["steps_per_second"], measured["queued"]["predictions_per_second"])
        shares = (measured[fastest]["cpu_share"], measured["queued"]["cpu_share"])
        print(f"{network:16}{speeds[0]:9,.0f}{speeds[1]:9,.0f}   {compared:26}{shares[0]:10.0%}{shares[1]:13.0%}")


def fastest_rival(measured: dict[str, Row]) -> str:
    """Returns the name of the fastest contestant besides the queued one."""
    return max(measured.keys() - {"queued"}, key=lambda name: measured[name]["steps_per_second"])


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--env", default="pong", help="Atari game (pong)")
    parser.add_argument("--algo", default="ga3c", help="algorithm of the queued training (ga3c)")
    parser.add_argument("--device", default="cpu", help="where the network runs: cpu or cuda:0 (cpu)")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help=f"among {' '.join(NETWORKS)} (ga3c; --full: all)")
    for name, default in (("agents", "2, 4, 8, 16 per logical CPU"), ("predictors", "1 2"), ("trainers", "1 2")):
        parser.add_argument(f"--{name}", nargs="+", type=int, metavar="N", help=f"numbers of {name} ({default})")
    envs = " ".join(map(str, ENVS))
    parser.add_argument("--envs", nargs="+", type=int, metavar="N", help=f"environments to try with A2C ({envs})")
    parser.add_argument("--interval", dest="interval_s", type=float, metavar="S", help="window of an adjustment (2.0)")
    add_turns(parser)
    add_json(parser)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw figure_2.png, figure_3.png and figure_4.png")
    add_overrides(parser, OVERRIDES)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    overrides = {name: given.pop(name) for name in OVERRIDES if name in given}
    return run_program(lambda: run(GA3COptions(**given, overrides=overrides)))


if __name__ == "__main__":
    sys.exit(main())
