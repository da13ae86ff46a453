"""How fast sampling is, against the simulation limit and other people's environments, and where the time goes.

    accel-rl bench sampling [--env pong] [--full] [--json FILE]    or    python benchmarks/sampling_throughput.py

First a comparison, at --envs-per-core environments, of these contestants:

    limit              one bare process per core that only simulates (limit.py)
    random             our sampler, random actions, rollouts of --horizon steps
    random-barrier     the same with a barrier every 5 steps: rollouts end, and all workers pause
    inference-cpu      our sampler with A3C-Net choosing the actions
    inference-cuda:0   the same on a GPU, for each; beside it, if there are enough cores, the action server has one of
                       its own, and limit-cuda:0 is the limit of the other cores
    network-cpu        only the network, on the same batches, with no environments: with the limit it gives the bound
    envpool-sync, envpool-async, ale-sync, ale-async, gymnasium-async          peers (peers.py), random actions

Then Table 1 of Stooke & Abbeel 2018, section 5.2: samples/s with A3C-Net by number of simulators, with a barrier every
five steps (SYNC) and without (ASYNC); and the data of their Figure 2, speed per core over simulators per core. Each
curve's simulators, and the action server with them, run on so many cores; the dashed line is one bare process on one
core, the dotted one a bare process on each of that core's hyperthreads.

Shares of time, each a part of a turn's wall time:

    inference          the action server was busy: observing, the network, writing actions and bookkeeping
    env_wait           the action server waited for environments; a peer's caller waited for its environments
    action_wait        workers waited for actions (mean over the workers)
    resizing           workers made observations: two grey screens, their maximum, its resizing
    emulating          workers did everything else, which is nearly all emulation: also their own bookkeeping

The first three are measured in the turn (`sampler.seconds`). The last two divide what action_wait leaves of the
workers' time, in the proportion that `resizing_share` measures once, in this process alone; so they include the time in
which a worker was ready, but another process had its core. A sampler that doesn't tell action_wait has neither of them.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.options import SamplingOptions
from accel_rl.bench.output import first_cores, shown, write_json
from accel_rl.bench.peers import peer_builders
from accel_rl.bench.timing import (
    Contestant,
    Repeated,
    Schedule,
    Shares,
    Turns,
    alternate,
    compare,
    ratio,
    show_ratio,
    two_resource_bound,
)
from accel_rl.envs import EnvConfig, EnvSpec, make_simulator
from accel_rl.envs.atari import AtariSimulator, game_name
from accel_rl.envs.batch_simulator import BatchConfig
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.placement import (
    LEAST_CORES_TO_RESERVE_ONE,
    MAX_LEARNING_THREADS,
    MAX_SAMPLING_THREADS,
    default_workers,
    divides_evenly,
    make_plan,
    pinned,
)
from accel_rl.hardware.topology import Cpus, available_cpus, read_machine
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import Policy, PolicyStep, RecurrentInputs
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig

VERSION = 1  # of the JSON
ROUNDS_S = 5  # turns' time for timing rounds
BARRIER_STEPS = 5
SIMS_PER_CORE = (2, 4, 8, 16)
FULL_ROUNDS = 20
COMPARISON_S, ROW_S = 90.0, 14.0  # of the default's 4 minutes: the comparison, each row of the table
DEFAULT_FIGURE = Path("results/sampling.png")
PROBE_S = 0.05  # one of 5 turns

Row = dict[str, Any]
Cores = list[list[int]]


class RandomPolicy:
    """Uniformly random actions for at least so many steps, drawn in advance, again and again the same: choosing them
    costs next to nothing."""

    state_size = 0

    def __init__(self, num_actions: int, num_envs: int, num_steps: int):
        self._drawn = torch.randint(num_actions, (max(num_steps, 1000), num_envs))
        self._next = 0

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        first = self._next if self._next + num_steps <= len(self._drawn) else 0
        self._next = first + num_steps
        return self._drawn[first : self._next]

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        assert noise is not None
        return noise, {}, None


class Sampling:
    """Our sampler. policy None: random actions. resizing: the share that `resizing_share` gives."""

    def __init__(
        self,
        name: str,
        env: EnvConfig,
        spec: EnvSpec,
        config: SamplerConfig,
        policy: Policy | None,
        device: str,
        resizing: float,
        server_cpus: Cpus | None = None,
    ):
        self.name, self._resizing, self._server_cpus = name, resizing, server_cpus
        self.shares: Shares = {}
        self._threads = 1 if policy is None else sampling_threads(device)
        policy = policy or RandomPolicy(_num_actions(spec), config.num_envs, config.horizon)
        batch = BatchConfig(env, seed=0, reset_mode="reserve")
        with pinned(server_cpus):
            self._sampler = AlternatingSampler(spec, batch, policy, config, device)

    def run(self, seconds: float) -> float:
        torch.set_num_threads(self._threads)
        before = dict(self._sampler.seconds)
        with pinned(self._server_cpus):
            start, steps = time.perf_counter(), 0
            while time.perf_counter() - start < seconds:
                steps += self._sampler.collect().reward.numel()
            wall = time.perf_counter() - start
        spent = {name: total - before[name] for name, total in self._sampler.seconds.items()}
        self.shares = sampler_shares(spent, wall, self._resizing)
        return steps / wall

    def rounds(self, seconds: float) -> tuple[list[float], list[float]]:
        """How long rounds take: all of them, and those in which a game starts anew [s]. A round is one step of all
        environments, from one moment when both groups have had their actions to the next."""
        every: list[float] = []
        with_reset: list[float] = []
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            served: list[float] = []
            rollout = self._sampler.collect(on_step=lambda t, served=served: served.append(time.perf_counter()))  # type: ignore[misc]
            took = np.diff(served)
            has_reset = rollout.reset[1 : len(served)].any(1).numpy()
            every += took.tolist()
            with_reset += took[has_reset].tolist()
        return every, with_reset

    def close(self) -> None:
        self._sampler.close()


def sampler_shares(spent: dict[str, float], wall: float, resizing: float) -> Shares:
    """spent: seconds of the turn, by what the sampler tells; wall: seconds of all of it. See the module's top."""
    shares: Shares = {name: spent[name] / wall for name in ("inference", "env_wait", "action_wait") if name in spent}
    if "action_wait" in shares:
        stepping = 1 - shares["action_wait"]
        shares |= {"resizing": stepping * resizing, "emulating": stepping * (1 - resizing)}
    return shares


def resizing_share(env: EnvConfig, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """What part of a simulator's step is not emulation. Takes 12 turns of that many seconds."""
    stepping, emulating = (make_simulator(env, np.random.SeedSequence(0), reserve=True) for _ in range(2))
    assert isinstance(stepping, AtariSimulator) and isinstance(emulating, AtariSimulator)
    row = np.zeros(stepping.spec.row_shape, stepping.spec.row_dtype)
    actions = np.random.default_rng(0).integers(_num_actions(stepping.spec), size=1000).tolist()
    stepping.reset(row)
    emulating.reset(row)
    ale, presses = emulating.ale, emulating.ale.getMinimalActionSet()
    action, action_alone = itertools.cycle(actions), itertools.cycle(actions)

    def step() -> int:
        if stepping.step(next(action), row).game_over:
            stepping.reset(row)
        return 1

    def emulate() -> int:
        press = presses[next(action_alone)]
        for _ in range(emulating.options.frame_skip):
            ale.act(press)
        if ale.game_over():
            emulating.reset(row)
        return 1

    turns = alternate(
        [Repeated("step", step, clock), Repeated("emulate", emulate, clock)], Schedule(seconds, 5), "probe"
    )
    return max(1 - turns["step"].median / turns["emulate"].median, 0.0)


def network_alone(spec: EnvSpec, num_envs: int, name: str = "network-cpu") -> Repeated:
    """The network's passes of sampling, with nobody else at work: batches of half the environments, choosing actions
    only, on as many threads as when it learns."""
    policy, half = ActorCritic(spec), num_envs // 2
    observation = torch.randint(256, (half, *spec.observation_shape), dtype=torch.uint8)
    noise = policy.draw_noise(1, half, torch.Generator())[0]
    threads = min(len(available_cpus()), MAX_LEARNING_THREADS)

    def two_batches() -> int:
        torch.set_num_threads(threads)
        for _ in range(2):
            policy.act(observation, noise)
        return 2 * half

    return Repeated(name, two_batches)


def sampling_threads(device: str) -> int:
    """As in training (accel_rl.training.build)."""
    return min(len(available_cpus()), MAX_SAMPLING_THREADS) if device == "cpu" else 1


def _num_actions(spec: EnvSpec) -> int:
    return int(getattr(spec.action_space, "n", 0))


class Benchmark:
    """The contestants of one game on the given cores. Raises UsageError if the numbers do not divide."""

    def __init__(self, options: SamplingOptions):
        self.options = options
        if game_name(options.env) is None:
            raise UsageError(f"env={options.env} is no Atari game (`accel-rl list envs`)")
        self.env = EnvConfig(options.env, options.env_preset)
        self.spec = make_simulator(self.env, np.random.SeedSequence(0)).spec
        self.device = _device(options.device)
        self.cores = first_cores(options.cores)
        self.num_envs = options.envs_per_core * len(self.cores)
        self.config = self._config(self.cores, self.num_envs, options.horizon, options.workers)
        self.resizing = resizing_share(self.env, PROBE_S)

    def _config(self, cores: Cores, num_envs: int, horizon: int, workers: int | None = None) -> SamplerConfig:
        return SamplerConfig(num_envs, horizon, workers or default_workers(num_envs, sum(map(len, cores))))

    def _row_config(self, cores: Cores, num_envs: int, horizon: int, workers: int | None) -> SamplerConfig:
        """With so many workers where the environments divide over them, else with the usual number."""
        fitting = workers if workers and divides_evenly(num_envs, workers) else None
        return self._config(cores, num_envs, horizon, fitting)

    def _sampling(
        self, name: str, config: SamplerConfig, device: str | None, server_cpus: Cpus | None = None
    ) -> Callable[[], Contestant]:
        """device: where the network runs; None: random actions instead."""

        def build() -> Contestant:
            policy = None if device is None else ActorCritic(self.spec).to(device)
            return Sampling(name, self.env, self.spec, config, policy, device or "cpu", self.resizing, server_cpus)

        return build

    def _limit(self, name: str, num_envs: int, cpus: list[int]) -> Callable[[], Contestant]:
        shares = {"emulating": 1 - self.resizing, "resizing": self.resizing}
        return partial(SimulationLimit, self.env, num_envs, cpus, name, shares)

    def _on_gpu(self, gpu: str) -> list[Callable[[], Contestant]]:
        """Our sampler with the network there, and the limit of the cores that its workers have."""
        machine = read_machine()
        num_cores = len(machine.cores) - (len(machine.cores) >= LEAST_CORES_TO_RESERVE_ONE)
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

    def reset_round(self) -> Row:
        """A round that holds a reset, over the median of all; see Sampling.rounds."""
        sampling = self._sampling("random", self.config, None)()
        assert isinstance(sampling, Sampling)
        try:
            sampling.rounds(self.options.seconds)
            every, with_reset = sampling.rounds(ROUNDS_S * self.options.seconds)
        finally:
            sampling.close()
        found = statistics.median(with_reset) / statistics.median(every) if with_reset else None
        return {"rounds": len(every), "with_reset": len(with_reset), "reset_over_median": found}

    def compare(self) -> tuple[dict[str, Turns], dict[str, str]]:
        """All contestants' turns, and the peers that are missing with the commands that install them."""
        options, long = self.options, self.config
        barrier = SamplerConfig(long.num_envs, BARRIER_STEPS, long.num_workers)
        builders: list[Callable[[], Contestant]] = [
            self._limit("limit", self.num_envs, [core[0] for core in self.cores]),
            self._sampling("random", long, None),
            self._sampling("random-barrier", barrier, None),
            self._sampling("inference-cpu", long, "cpu"),
            *(builder for gpu in _gpus() for builder in self._on_gpu(gpu)),
            partial(network_alone, self.spec, self.num_envs),
        ]
        missing: dict[str, str] = {}
        if options.peers:
            peers, missing = peer_builders(self.env, self.num_envs)
            builders += peers.values()
        return compare(builders, self._schedule(COMPARISON_S), "comparison"), missing

    def table_and_curves(self) -> tuple[list[Row], list[Row]]:
        """Rows of Table 1, and the points of Figure 2 with those of its dashed and dotted lines."""
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
        """One comparison on the first cores: with a barrier (on all cores only) and without, and bare processes."""
        options, cores = self.options, self.cores[:num_cores]
        whole = num_cores == len(self.cores)
        num_envs, workers = num_cores * per_core, options.workers if whole else None
        horizons = {"sync": BARRIER_STEPS, "async": options.horizon} if whole else {"async": options.horizon}
        builders = [
            self._sampling(name, self._row_config(cores, num_envs, horizon, workers), self.device)
            for name, horizon in horizons.items()
        ]
        core = cores[0]
        builders.append(self._limit("process", per_core, core[:1]))
        if len(core) > 1:
            builders.append(self._limit("hyperthreads", per_core, core))
        with pinned(tuple(cpu for core in cores for cpu in core)):
            return compare(builders, self._schedule(ROW_S), f"{num_cores} cores, {per_core} simulators each")

    def _schedule(self, budget_s: float) -> Schedule:
        options = self.options
        if options.rounds or options.full:
            return Schedule(options.seconds, options.rounds or FULL_ROUNDS)
        return Schedule(options.seconds, FULL_ROUNDS, budget_s)


def core_counts(num_cores: int, full: bool) -> list[int]:
    """1, 2, 4, ... and all cores; or all cores only."""
    powers = [2**i for i in range(num_cores.bit_length()) if 2**i < num_cores]
    return [*powers, num_cores] if full else [num_cores]


def table_row(num_cores: int, per_core: int, turns: dict[str, Turns]) -> Row:
    """Samples/s of all cores together."""
    return {
        "simulators": num_cores * per_core,
        "per_core": per_core,
        "sync": turns["sync"].median,
        "async": turns["async"].median,
        "sync_over_async": ratio(turns["sync"].rates, turns["async"].rates),
    }


def figure_point(kind: str, cores: int, per_core: int | None, rate: float) -> Row:
    """kind: "sampler", or what a line is of: bare "process" or bare processes on all "hyperthreads" of one core."""
    return {"kind": kind, "cores": cores, "per_core": per_core, "steps_per_second_per_core": rate / cores}


def _device(name: str | None) -> str:
    """Raises UsageError for a device that there isn't."""
    if name is None:
        return "cuda:0" if _gpus() else "cpu"
    known = ["cpu", *_gpus()]
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in known:
        raise UsageError(f"device={name} is not on this machine, which has {', '.join(known)}")
    return wanted


def _gpus() -> list[str]:
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def ratios(turns: dict[str, Turns]) -> dict[str, dict[str, float]]:
    """Of each contestant to the limit, of inference on the CPU to the bound, of our sampler to each peer."""
    rates = {name: turn.rates for name, turn in turns.items()}
    found = {f"{name} / limit": ratio(rates[name], rates["limit"]) for name in rates if name != "limit"}
    bound = two_resource_bound(rates["limit"], rates["network-cpu"])
    found["inference-cpu / bound"] = ratio(rates["inference-cpu"], bound)
    for gpu in [name.removeprefix("limit-") for name in rates if name.startswith("limit-")]:
        found[f"inference-{gpu} / limit-{gpu}"] = ratio(rates[f"inference-{gpu}"], rates[f"limit-{gpu}"])
    for name in rates:
        if name.startswith(("envpool", "ale", "gymnasium")):
            found[f"random / {name}"] = ratio(rates["random"], rates[name])
    return found


def run(options: SamplingOptions) -> dict[str, Any]:
    """Runs and prints the whole benchmark, and writes its files; returns what the JSON holds."""
    with pinned(tuple(cpu for core in first_cores(options.cores) for cpu in core)):
        figure = _figure_path(options) if options.table else None
        benchmark = Benchmark(options)
        for file in filter(None, (options.json, figure)):  # now rather than after minutes of work
            file.parent.mkdir(parents=True, exist_ok=True)
        turns, missing = benchmark.compare()
        reset_round = benchmark.reset_round()
        table, points = benchmark.table_and_curves() if options.table else ([], [])
        result = {
            "benchmark": "sampling",
            "version": VERSION,
            "machine": describe_machine(),
            "options": shown(options)
            | {"device": benchmark.device, "workers": benchmark.config.num_workers, "envs": benchmark.num_envs},
            "missing_peers": missing,
            "contestants": {
                name: {"steps_per_second": turn.median, "rates": turn.rates, "shares": turn.median_shares()}
                for name, turn in turns.items()
            },
            "ratios": ratios(turns),
            "reset_round": reset_round,
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


def _figure_path(options: SamplingOptions) -> Path | None:
    """Where the picture goes. Raises UsageError at once if it can't be drawn, unless nobody asked for it."""
    from importlib.util import find_spec

    if find_spec("matplotlib"):
        path = options.figure or DEFAULT_FIGURE
        if path.suffix != ".png":
            raise UsageError(f"cannot draw into {path}: its name must end in .png")
        return path
    if options.figure:
        raise UsageError('drawing needs matplotlib: pip install "accel-rl[bench]"')
    print('no figure without matplotlib: pip install "accel-rl[bench]"', file=sys.stderr)
    return None


def show(result: dict[str, Any]) -> None:
    """Prints what the JSON holds."""
    options, of_limit = result["options"], result["ratios"]
    print(format_machine(result["machine"]))
    print(
        f"{options['env']} ({options['env_preset']}), {options['envs']} environments, {options['workers']} workers; "
        "medians, with 95 % intervals"
    )
    print(f"\n{'':16}{'steps/s':>9}   {'of the limit':24}shares of time")
    for name, contestant in result["contestants"].items():
        share = show_ratio(of_limit[f"{name} / limit"]) if name != "limit" else ""
        times = ", ".join(f"{share_name} {value:.2f}" for share_name, value in contestant["shares"].items())
        print(f"{name:16}{contestant['steps_per_second']:9,.0f}   {share:24}{times}")
    for name, value in of_limit.items():
        if not name.endswith("/ limit"):
            print(f"{name:28}{show_ratio(value)}")
    rounds = result["reset_round"]
    if rounds["with_reset"]:
        print(
            f"a round with a reset / median round  {rounds['reset_over_median']:.3f} "
            f"({rounds['with_reset']} of {rounds['rounds']} rounds)"
        )
    for name, command in result["missing_peers"].items():
        print(f"not installed: {name}; {command}")
    if not result["table_1"]:
        return
    print(f"\nTable 1: samples/s with A3C-Net on {options['device']}, by total simulator count")
    print(f"{'simulators (per core)':24}{'SYNC':>9}{'ASYNC':>9}")
    for row in result["table_1"]:
        print(f"{row['simulators']} ({row['per_core']})".ljust(24) + f"{row['sync']:9,.0f}{row['async']:9,.0f}")
    print()
