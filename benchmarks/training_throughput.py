"""Measures training against other frameworks, and against the two-resource bound or sampling alone.

python benchmarks/training_throughput.py --install-peers       once: each peer in an environment of its own
python benchmarks/training_throughput.py [--contests a2c ppo appo bound dqn ...] [--full] [--json FILE]

Contests. Their contestants take turns; each acts, simulates and learns. Rates are agent steps per second:

    a2c      A2C, 16 environments, rollouts of 5 steps                               Stable-Baselines3's A2C
    ppo      PPO, 8 environments, 128 steps, 4 epochs of 4 minibatches               Stable-Baselines3's PPO
    appo     PPO, 16 environments, 128 steps, 1 epoch of 8 minibatches               Sample Factory's APPO
    bound    A2C, 16 environments, rollouts of 5 steps, on the paper's frames with A3C-Net, and its two-resource bound:
             with S the rate of simulation alone and N that of the network alone (choosing actions and learning, at the
             same batch sizes), each on all cores, no schedule exceeds 1/(1/S + 1/N)
    bound-pqn  the same with PQN: 16 environments, 32 steps, 2 epochs of 4 minibatches, frames of 84x84, Nature-CNN
    dqn      DQN, 32 environments, rollouts of 4 steps, batches of 32, intensity 8    Stable-Baselines3's DQN, and
             the network alone: forward, target network, backward and optimizer, repeated with one batch
    dqn-512  the same in batches of 512
    a2c-gpu  A2C, 16 environments per logical CPU, with the network on a GPU                         sampling alone
    ppo-gpu  the same with PPO: 4 epochs of 4 minibatches over 2048 samples, or 4 steps if these are more

Those of the Q-learning family take place only if they are named. Against peers, all contestants play under the same
rules: frames of 84x84, stacks of four, lost lives end episodes, rewards are clipped, the network is Nature-CNN with 512
units, and the kind of optimizer is the same. Ours runs in float32 and, except with DQN, once more with its network in
bfloat16 (`bf16`), which no peer offers. The table says how many parameters each contestant has (without a target
network), and how many agent steps there are per update: both numbers must be equal within a contest.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Turns, alternate, format_ratio, ratio, two_resource_bound
from accel_rl.envs.atari import game_name
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import read_topology
from command_line import TurnOptions, add_json, add_overrides, add_turns, check_names, make_parser, run_program
from peer_environments import install_peers, python_of
from peer_process import PeerProcess, driver_command
from training_contestants import Training
from training_contests import CONTESTS, Contest, Settings, driver_settings

VERSION = 2  # of the JSON
BOUND = "bound"
BOUNDS: dict[str, Settings] = {BOUND: {"algo": "a2c", "envs": 16, "horizon": 5}, "bound-pqn": {"algo": "pqn_16x32"}}
BOUND_BUDGET_S = 30.0
ON_GPU = {"a2c-gpu": "a2c", "ppo-gpu": "ppo"}  # contest: algorithm
ON_GPU_ENVS_PER_CPU, ON_GPU_BATCH, ON_GPU_BUDGET_S = 16, 2048, 60.0
OVERRIDES = {
    "workers": "simulator processes of our runs (one per logical CPU)",
    "sampling_threads": "threads of our network while sampling",
    "learning_threads": "threads of our network while learning",
}

Result = dict[str, Any]


def contest_names() -> tuple[str, ...]:
    """Returns the names of all contests."""
    return (*CONTESTS, *BOUNDS, *ON_GPU)


def default_contests() -> tuple[str, ...]:
    """Returns the contests that take place where none is named: they take 4 minutes, and this machine can hold them."""
    gpu = tuple(ON_GPU) if torch.cuda.is_available() else ()
    return (*(name for name, contest in CONTESTS.items() if not contest.against_network), BOUND, *gpu)


@dataclass(frozen=True)
class TrainingOptions(TurnOptions):
    """Options of the benchmark.

    contests: None for `default_contests`. device: of the contests on a GPU (auto: the first GPU). peers: the folder of
    the peers' environments. overrides: settings of all our runs. Raises UsageError for a value out of range."""

    env: str = "pong"
    contests: Sequence[str] | None = None
    device: str = "auto"
    peers: Path = Path(".peers")
    overrides: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if game_name(self.env) is None:
            raise UsageError(f"env={self.env} is not an Atari game; `accel-rl list envs` lists them")
        check_names("contest", self.contests or (), contest_names())


def run(options: TrainingOptions) -> Result:
    """Runs all contests, prints their tables and writes the file; returns what the JSON holds."""
    create_parents(options.json)
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
            contests[name] = run_bound(BOUNDS[name], options) if name in BOUNDS else run_on_gpu(ON_GPU[name], options)
        show(contests[name])
    for peer, command in missing.items():
        print(f"not installed: {peer}; {command}")
    result = {**describe_run("training", VERSION, options), "missing_peers": list(missing), "contests": contests}
    write_json(options.json, result)
    return result


def run_contest(contest: Contest, options: TrainingOptions) -> Result:
    """Lets ours, ours in bfloat16 or our network alone, and the peer, if it is installed, take turns."""
    start = time.perf_counter()
    settings = {**contest.settings, "env": options.env, **options.overrides}
    with ExitStack() as stack:
        ours = [
            stack.enter_context(closing(Training(name, {**settings, "precision": "bf16" if bf16 else "float32"})))
            for name, bf16 in (("ours", False), ("ours-bf16", True))[: 1 if contest.against_network else 2]
        ]
        rivals: list[Contestant] = [ours[0].updates_alone()] if contest.against_network else []
        trials: dict[str, float] = {}
        if python_of(options.peers, contest.peer).exists():
            peer, trials = fastest(peer_builders(contest, settings, options), options.seconds)
            stack.callback(peer.close)
            rivals.append(peer)
        contestants: list[Contestant] = [*ours, *rivals]
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


def peer_builders(
    contest: Contest, settings: Settings, options: TrainingOptions
) -> dict[str, Callable[[], PeerProcess]]:
    """Returns, by name, what starts each variant of the peer that competes or is tried."""
    python = python_of(options.peers, contest.peer)
    commands = {
        _format_settings(variant): driver_command(python, contest.driver, driver_settings(settings, variant))
        for variant in (contest.variants if options.full else contest.variants[:1])
    }
    return {variant: partial(PeerProcess, contest.peer, command) for variant, command in commands.items()}


def run_bound(settings: Settings, options: TrainingOptions) -> Result:
    """Compares ours with the two-resource bound of the cores."""
    start = time.perf_counter()
    with ExitStack() as stack:
        training = stack.enter_context(closing(Training("ours", {**settings, "env": options.env, **options.overrides})))
        config = training.config
        simulation = stack.enter_context(closing(SimulationLimit(config.env, config.run.envs, None, "simulation")))
        contestants: list[Contestant] = [simulation, training.network(), training]
        left_s = BOUND_BUDGET_S - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), BOUND)
        bound = Turns(two_resource_bound(turns["simulation"].rates, turns["network"].rates))
        title = f"{config.run.algo}, {config.run.envs} environments x {config.run.horizon} steps"
        described = {name: _describe(turn) for name, turn in turns.items()}
        return {
            "title": f"{title}: {options.env} ({config.run.env_preset}), {config.run.network or 'a3c'}",
            "contestants": {**described, "ours": _describe(turns["ours"], training), BOUND: _describe(bound)},
            "trials": {},
            "ratios": {"ours / bound": ratio(turns["ours"].rates, bound.rates)},
        }


def run_on_gpu(algo: str, options: TrainingOptions) -> Result:
    """Compares ours with the same without learning: what learning on a GPU takes from the simulators."""
    start = time.perf_counter()
    envs = ON_GPU_ENVS_PER_CPU * len(read_topology().cpus)
    horizon = {"a2c": 5, "ppo": max(4, ON_GPU_BATCH // envs)}[algo]
    settings = {"algo": algo, "envs": envs, "horizon": horizon, "env": options.env, "device": options.device}
    with closing(Training("ours", {**settings, **options.overrides})) as training:
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
    if isinstance(contestant, Training | PeerProcess):
        described |= {"facts": contestant.facts, "steps_per_update": contestant.steps / max(contestant.updates, 1)}
    return described


def _format_settings(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def fastest(builders: Mapping[str, Callable[[], PeerProcess]], seconds: float) -> tuple[PeerProcess, dict[str, float]]:
    """Builds all contestants; returns the one that is the fastest in its second turn, and the rates [steps/s] of all in
    theirs. Closes the other ones. A single contestant is not tried."""
    if len(builders) == 1:
        return next(iter(builders.values()))(), {}
    rates: dict[str, float] = {}
    best: PeerProcess | None = None
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
            print(
                f"{name}: {_format_settings({key: v for key, v in contestant['facts'].items() if key != 'parameters'})}"
            )
    for variant, rate in contest["trials"].items():
        print(f"tried {variant}: {rate:,.0f} steps/s")
    for name, value in contest["ratios"].items():
        print(f"{name:32}{format_ratio(value)}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--env", default="pong", help="Atari game (pong)")
    names = f"contests among {', '.join(contest_names())} ({', '.join(default_contests())})"
    parser.add_argument("--contests", nargs="+", metavar="CONTEST", help=names)
    parser.add_argument("--device", default="auto", help="device of the contests on a GPU (auto: the first GPU)")
    add_turns(parser)
    parser.add_argument(
        "--peers", type=Path, default=Path(".peers"), metavar="DIR", help="folder of the peers' environments (.peers)"
    )
    parser.add_argument("--install-peers", action="store_true", help="only create these environments, with pip")
    add_json(parser)
    add_overrides(parser, OVERRIDES)
    given: dict[str, Any] = vars(parser.parse_args())
    overrides = {name: value for name in OVERRIDES if (value := given.pop(name)) is not None}
    if given.pop("install_peers"):
        install_peers(given["peers"])
    else:
        run(TrainingOptions(**given, overrides=overrides))


if __name__ == "__main__":
    sys.exit(run_program(main))
