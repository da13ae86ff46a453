"""How fast training is, against other people's frameworks and against the two-resource bound, or sampling alone.

    python benchmarks/training_throughput.py --install-peers       once: each peer in an environment of its own
    python benchmarks/training_throughput.py [--full] [--json FILE]

Contests, whose contestants take turns, each acting, simulating and learning; rates are agent steps per second:

    a2c      A2C, 16 environments, rollouts of 5 steps                               Stable-Baselines3's A2C
    ppo      PPO, 8 environments, 128 steps, 4 epochs of 4 minibatches               Stable-Baselines3's PPO
    appo     PPO, 16 environments, 128 steps, 1 epoch of 8 minibatches               Sample Factory's APPO
    bound    A2C, 16 environments, rollouts of 5 steps, on the paper's frames with A3C-Net, and its two-resource bound:
             with S the rate of simulating alone and N that of the network alone (choosing actions and learning, at the
             same batch sizes), each on all cores, no schedule exceeds 1/(1/S + 1/N)
    dqn      DQN, 32 environments, rollouts of 4 steps, batches of 32, intensity 8    Stable-Baselines3's DQN, and
             the network alone: forward, target network, backward and rule, over and over with one batch
    dqn-512  the same in batches of 512
    a2c-gpu  A2C, 16 environments per processor, with the network on a GPU                           sampling alone
    ppo-gpu  the same of PPO: 4 epochs of 4 minibatches over 2048 samples, or 4 steps if these are more

Those of DQN take place only if they are named. Against peers, for all contestants alike, frames are 84x84, four of them
stacked, lost lives end episodes, rewards are clipped, the network is Nature-CNN with 512 units, and the kind of
optimiser is the same. Ours runs in float32, and, but for DQN, once more with its network in bfloat16 (`bf16`), which no
peer offers. The table says how many parameters each contestant has (without a target network), and how many agent steps
go into an update: both numbers must be the same throughout a contest.
"""

import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accel_rl.bench.driven import Driven, driver_command
from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.ours import Settings, Training
from accel_rl.bench.output import shown, write_json
from accel_rl.bench.timing import (
    Contestant,
    Schedule,
    Turns,
    alternate,
    ratio,
    show_ratio,
    two_resource_bound,
)
from accel_rl.envs.atari import game_name, games
from accel_rl.errors import RunError, UsageError, unknown
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import read_machine

VERSION = 2  # of the JSON
FULL_ROUNDS = 20

# What each peer's environment holds, beside the torch that runs here. ale-py: the emulator of all contestants.
PEERS = {
    "stable-baselines3": ("stable-baselines3==2.9.2", "gymnasium==1.4.0", "numpy==2.4.6", "opencv-python-headless"),
    "sample-factory": ("sample-factory==2.1.1", "gymnasium==0.29.1", "numpy==1.26.4", "opencv-python==4.11.0.86"),
}
ALE = "ale-py==0.12.1"

Result = dict[str, Any]


@dataclass(frozen=True)
class Contest:
    """settings: of our run, and as far as they are the driver's options, of the peer's.

    variants: further options of the driver. The first one competes by default; with --full all are tried, and the
    fastest competes. budget_s: of the 4 minutes, start-up included. against_network: in place of ours in bfloat16 the
    updates alone take part, even where the peer is not installed. by_default: also where no contest is named."""

    title: str
    settings: Settings
    peer: str
    driver: str
    variants: tuple[Settings, ...]
    budget_s: float
    against_network: bool = False
    by_default: bool = True


SAME = {"env_preset": "dqn84", "network": "nature"}
VECTORIZATIONS = ("subproc", "dummy")


def q_contest(batch_size: int) -> Contest:
    """Learning begins as soon as the larger batch can be drawn; from then on a tenth of the actions is random."""
    settings = {"algo": "dqn", "envs": 32, "horizon": 4, "batch_size": batch_size, "training_intensity": 8, **SAME}
    short = {"replay_size": 20_000, "warmup_steps": 2048, "epsilon_final": [0.1], "epsilon_steps": 1}
    return Contest(
        f"DQN, 32 environments x 4 steps, batches of {batch_size}, intensity 8",
        settings | short,
        "stable-baselines3",
        "sb3",
        tuple({"algo": "dqn", "vectorization": name} for name in VECTORIZATIONS),
        60.0,
        against_network=True,
        by_default=False,
    )


CONTESTS = {
    "a2c": Contest(
        "A2C, 16 environments x 5 steps",
        {"algo": "a2c", "envs": 16, "horizon": 5, **SAME},
        "stable-baselines3",
        "sb3",
        tuple({"algo": "a2c", "vectorization": name} for name in VECTORIZATIONS),
        40.0,
    ),
    "ppo": Contest(
        "PPO, 8 environments x 128 steps, 4 epochs x 4 minibatches",
        {"algo": "ppo", "envs": 8, "horizon": 128, "epochs": 4, "minibatches": 4, **SAME},
        "stable-baselines3",
        "sb3",
        tuple({"algo": "ppo", "vectorization": name} for name in VECTORIZATIONS),
        60.0,
    ),
    "appo": Contest(
        "PPO, 16 environments x 128 steps, 1 epoch x 8 minibatches",
        {"algo": "ppo", "envs": 16, "horizon": 128, "epochs": 1, "minibatches": 8, **SAME},
        "sample-factory",
        "appo",
        (
            {"mode": "async", "workers": 2, "splits": 2},
            {"mode": "async", "workers": 2, "splits": 1},
            {"mode": "async", "workers": 1, "splits": 2},
            {"mode": "sync", "workers": 2, "splits": 2},
            {"mode": "serial", "workers": 1, "splits": 1},
        ),
        90.0,
    ),
    **{name: q_contest(batch_size) for name, batch_size in (("dqn", 32), ("dqn-512", 512))},
}
BOUND = "bound"
BOUND_SETTINGS: Settings = {"algo": "a2c", "envs": 16, "horizon": 5}
BOUND_BUDGET_S = 30.0
ON_GPU = {"a2c-gpu": "a2c", "ppo-gpu": "ppo"}  # contest: algorithm
ON_GPU_ENVS_PER_CPU, ON_GPU_BATCH, ON_GPU_BUDGET_S = 16, 2048, 60.0
# Settings of ours that drivers have as well.
SHARED_OPTIONS = (
    "envs", "horizon", "epochs", "minibatches", "batch_size", "training_intensity", "replay_size", "warmup_steps",
)  # fmt: skip


def contest_names() -> tuple[str, ...]:
    return (*CONTESTS, BOUND, *ON_GPU)


def default_contests() -> tuple[str, ...]:
    """Those of 4 minutes that this machine can hold."""
    gpu = tuple(ON_GPU) if torch.cuda.is_available() else ()
    return (*(name for name, contest in CONTESTS.items() if contest.by_default), BOUND, *gpu)


@dataclass(frozen=True)
class TrainingOptions:
    """seconds: of each contestant in a round; whole iterations can take longer. overrides: settings of all our runs.

    Raises UsageError for a value out of range."""

    env: str = "pong"
    contests: tuple[str, ...] | None = None  # `default_contests`
    device: str = "auto"  # of the contests on a GPU
    seconds: float = 1.0
    rounds: int | None = None
    full: bool = False
    peers: Path = Path(".peers")
    json: Path | None = None
    overrides: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if game_name(self.env) is None:
            raise UsageError(f"env={self.env} is no Atari game (`accel-rl list envs`)")
        for name in self.contests or ():
            if name not in contest_names():
                raise unknown("contest", name, contest_names())
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} must be at least 1")

    def schedule(self, budget_s: float) -> Schedule:
        if self.rounds or self.full:
            return Schedule(self.seconds, self.rounds or FULL_ROUNDS)
        return Schedule(self.seconds, FULL_ROUNDS, budget_s)


def run(options: TrainingOptions) -> Result:
    """Runs and prints the whole benchmark, and writes its file; returns what the JSON holds."""
    if options.json:  # now rather than after minutes of work
        options.json.parent.mkdir(parents=True, exist_ok=True)
    print(format_machine(describe_machine()))
    contests: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for name in options.contests or default_contests():
        contest = CONTESTS.get(name)
        if contest and not python_of(options.peers, contest.peer).exists():
            missing[contest.peer] = f"{Path(sys.argv[0])} --peers {options.peers} --install-peers"
            if not contest.against_network:
                continue
        if contest:
            contests[name] = run_contest(contest, options)
        else:
            contests[name] = run_bound(options) if name == BOUND else run_on_gpu(ON_GPU[name], options)
        show(contests[name])
    for peer, command in missing.items():
        print(f"not installed: {peer}; {command}")
    result = {
        "benchmark": "training",
        "version": VERSION,
        "machine": describe_machine(),
        "options": shown(options),
        "missing_peers": list(missing),
        "contests": contests,
    }
    write_json(options.json, result)
    return result


def run_contest(contest: Contest, options: TrainingOptions) -> Result:
    """Ours, ours in bfloat16 or our network alone, and the peer, if it is installed, take turns."""
    start = time.perf_counter()
    settings = {**contest.settings, "env": options.env, **options.overrides}
    with ExitStack() as stack:
        ours: list[Training] = []
        for name, bf16 in (("ours", False), ("ours-bf16", True))[: 1 if contest.against_network else 2]:
            ours.append(Training(name, {**settings, "bf16": bf16}))
            stack.callback(ours[-1].close)
        contestants: list[Contestant] = [*ours]
        rivals: list[Contestant] = [ours[0].updates_alone()] if contest.against_network else []
        trials: dict[str, float] = {}
        if python_of(options.peers, contest.peer).exists():
            peer, trials = fastest(peer_builders(contest, settings, options), options.seconds)
            stack.callback(peer.close)
            rivals.append(peer)
        contestants += rivals
        left_s = contest.budget_s - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), contest.title)
        rates = {name: turn.rates for name, turn in turns.items()}
        return {
            "title": f"{contest.title}: {options.env} (dqn84), Nature-CNN",
            "contestants": {c.name: _describe(turns[c.name], c) for c in contestants},
            "trials": trials,
            "ratios": {
                f"{c.name} / {rival.name}": ratio(rates[c.name], rates[rival.name]) for rival in rivals for c in ours
            },
        }


def peer_builders(contest: Contest, settings: Settings, options: TrainingOptions) -> dict[str, Callable[[], Driven]]:
    """What starts each variant of the peer that is to compete or to be tried."""
    python = python_of(options.peers, contest.peer)
    commands = {
        _show(variant): driver_command(python, contest.driver, driver_settings(settings, variant))
        for variant in (contest.variants if options.full else contest.variants[:1])
    }
    return {variant: partial(Driven, contest.peer, command) for variant, command in commands.items()}


def run_bound(options: TrainingOptions) -> Result:
    """Ours, and how close it comes to what the cores could do at best."""
    start = time.perf_counter()
    training = Training("ours", {**BOUND_SETTINGS, "env": options.env, **options.overrides})
    with ExitStack() as stack:
        stack.callback(training.close)
        simulation = SimulationLimit(training.config.env, training.config.run.envs, name="simulation")
        stack.callback(simulation.close)
        network = training.network()
        contestants: list[Contestant] = [simulation, network, training]
        left_s = BOUND_BUDGET_S - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), BOUND)
        bound = Turns(two_resource_bound(turns["simulation"].rates, turns["network"].rates))
        config = training.config
        title = f"A2C, {config.run.envs} environments x {config.run.horizon} steps"
        described = {name: _describe(turn) for name, turn in turns.items()}
        return {
            "title": f"{title}: {options.env} ({config.run.env_preset}), A3C-Net",
            "contestants": {**described, "ours": _describe(turns["ours"], training), BOUND: _describe(bound)},
            "trials": {},
            "ratios": {"ours / bound": ratio(turns["ours"].rates, bound.rates)},
        }


def run_on_gpu(algo: str, options: TrainingOptions) -> Result:
    """Ours, and the same without learning: what a GPU that learns takes from the simulators."""
    start = time.perf_counter()
    envs = ON_GPU_ENVS_PER_CPU * len(read_machine().cpus)
    horizon = {"a2c": 5, "ppo": max(4, ON_GPU_BATCH // envs)}[algo]
    settings = {"algo": algo, "envs": envs, "horizon": horizon, "env": options.env, "device": options.device}
    training = Training("ours", {**settings, **options.overrides})
    with ExitStack() as stack:
        stack.callback(training.close)
        contestants: list[Contestant] = [training.sampling(), training]
        title = f"{algo.upper()}, {training.config.run.envs} environments x {training.config.run.horizon} steps"
        left_s = ON_GPU_BUDGET_S - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), title)
        return {
            "title": f"{title}: {options.env} (stooke), A3C-Net on {training.config.run.device}",
            "contestants": {"sampling": _describe(turns["sampling"]), "ours": _describe(turns["ours"], training)},
            "trials": {},
            "ratios": {"ours / sampling": ratio(turns["ours"].rates, turns["sampling"].rates)},
        }


def _describe(turns: Turns, contestant: Contestant | None = None) -> Result:
    described: Result = {"steps_per_second": turns.median, "rates": turns.rates}
    if isinstance(contestant, Training | Driven):
        described |= {"facts": contestant.facts, "steps_per_update": contestant.steps / max(contestant.updates, 1)}
    return described


def _show(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def driver_settings(settings: Settings, variant: Settings) -> Settings:
    """The options of a peer's driver that make it do what ours does with these settings."""
    name = game_name(settings["env"])
    assert name
    game = games()[name].removeprefix("ALE/").removesuffix("-v5")
    return {"game": game, **{key: settings[key] for key in SHARED_OPTIONS if key in settings}, **variant}


def fastest(builders: Mapping[str, Callable[[], Driven]], seconds: float) -> tuple[Driven, dict[str, float]]:
    """The one that is the fastest in its second turn, and the rates of all in theirs [steps/s]; the others are closed.

    A single one is not tried."""
    if len(builders) == 1:
        return next(iter(builders.values()))(), {}
    rates: dict[str, float] = {}
    best: Driven | None = None
    try:
        for name, build in builders.items():
            contestant = build()
            with ExitStack() as stack:
                stack.callback(contestant.close)
                contestant.run(seconds)
                rates[name] = contestant.run(seconds)
                if rates[name] == max(rates.values()):
                    stack.pop_all()
                    if best:
                        best.close()
                    best = contestant
    except BaseException:
        if best:
            best.close()
        raise
    assert best
    return best, rates


def python_of(peers: Path, peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return peers.absolute() / peer / "bin" / "python"


def install_peers(peers: Path) -> None:
    """Creates the environment of each peer that is not there. Raises RunError if pip fails."""
    for peer, requirements in PEERS.items():
        python = python_of(peers, peer)
        if python.exists():
            print(f"{python.parent.parent} is there already")
            continue
        print(f"installing {peer} into {python.parent.parent}")
        same_torch = f"torch=={torch.__version__.split('+')[0]}"
        try:
            venv.create(python.parent.parent, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", same_torch, ALE, *requirements], check=True)
        except BaseException as error:
            shutil.rmtree(python.parent.parent, ignore_errors=True)
            if isinstance(error, subprocess.CalledProcessError):
                raise RunError(f"{peer} could not be installed; pip says why above") from None
            raise


def show(contest: Result) -> None:
    """Prints one contest's table."""
    print(f"\n{contest['title']}; medians, with 95 % intervals")
    print(f"{'':20}{'steps/s':>9}{'steps/update':>14}{'parameters':>12}")
    for name, contestant in contest["contestants"].items():
        line = f"{name:20}{contestant['steps_per_second']:9,.0f}"
        if "facts" in contestant:
            line += f"{contestant['steps_per_update']:14,.0f}{contestant['facts']['parameters']:12,}"
        print(line)
    for name, contestant in contest["contestants"].items():
        if "facts" in contestant:
            print(f"{name}: {_show({key: v for key, v in contestant['facts'].items() if key != 'parameters'})}")
    for variant, rate in contest["trials"].items():
        print(f"tried {variant}: {rate:,.0f} steps/s")
    for name, value in contest["ratios"].items():
        print(f"{name:32}{show_ratio(value)}")
