"""Measures training against other frameworks, and against the two-resource bound.

python benchmarks/training_throughput.py --install-peers       once: each peer in its own environment
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
    ppo-cartpole, ppo-lunarlander, ppo-cheetah, ppo-minigrid, dqn-cartpole
             PPO (16 environments, 128 steps, 10 epochs of 8 minibatches) and DQN on vectors, compiled and not, against
             Stable-Baselines3 with its environments in processes and in its own process, on 1 and on 2 threads

Contests of the Q-learning family and on vectors run only if they are named. On Atari, against peers, all contestants
have the same rules: frames of 84x84, stacks of four, lost lives end episodes, rewards are clipped, the network is
Nature-CNN with 512 units, and the kind of optimizer is the same. Ours runs in float32 and, except with DQN, again with
its network in bfloat16 (`bf16`), which no peer offers. The table has each contestant's parameters (without a target
network) and agent steps per update. Both numbers must be equal within a contest.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.options import add_options, option
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Turns, alternate, format_ratio, ratio, two_resource_bound
from accel_rl.envs.games.atari import game_name
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from command_line import TurnOptions, check_names, make_parser, run_program
from peer_environments import install_peers, python_of
from peer_process import PeerProcess, driver_command
from training_contestants import Training
from training_contests import CONTESTS, Contest, Settings, driver_settings

VERSION = 3  # version of the JSON format
BOUND = "bound"
BOUNDS: dict[str, Settings] = {BOUND: {"algo": "a2c", "envs": 16, "horizon": 5}, "bound-pqn": {"algo": "pqn_16x32"}}
BOUND_BUDGET_S = 30.0
# The default contests, which take 4 minutes together.
DEFAULT_CONTESTS = (*(name for name, each in CONTESTS.items() if not (each.against_network or each.env)), BOUND)

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(TurnOptions):
    """Options of the benchmark. Raises UsageError for a value out of range."""

    env: str = option("pong", "Atari game (pong)")
    contests: Sequence[str] = option(
        DEFAULT_CONTESTS,
        f"contests among {', '.join((*CONTESTS, *BOUNDS))} ({', '.join(DEFAULT_CONTESTS)})",
        nargs="+",
        metavar="CONTEST",
    )
    peers: Path = option(Path(".peers"), "folder of the peers' Python environments (.peers)", type=Path, metavar="DIR")

    def __post_init__(self) -> None:
        super().__post_init__()
        if game_name(self.env) is None:
            raise UsageError(f"env={self.env} is not an Atari game; `accel-rl list envs` lists them")
        check_names("contest", self.contests, (*CONTESTS, *BOUNDS))


def run(options: TrainingOptions) -> Result:
    """Runs all contests, prints their tables and writes the file; returns the contents of the JSON."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    contests: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for name in options.contests:
        contest = CONTESTS.get(name)
        if contest and not python_of(options.peers, contest.peer).exists():
            missing[contest.peer] = f"{Path(sys.argv[0])} --peers {options.peers} --install-peers"
            if not contest.against_network:
                continue
        contests[name] = run_contest(contest, options) if contest else run_bound(BOUNDS[name], options)
        show(contests[name])
    for peer, command in missing.items():
        print(f"not installed: {peer}; {command}")
    result = {**describe_run("training", VERSION, options), "missing_peers": list(missing), "contests": contests}
    write_json(options.json, result)
    return result


def run_contest(contest: Contest, options: TrainingOptions) -> Result:
    """Runs a contest of ours, ours in bfloat16 or our network alone, and the peer if it is installed."""
    start = time.perf_counter()
    settings = {**contest.settings, "env": contest.env or options.env}
    with ExitStack() as stack:
        ours = [
            stack.enter_context(closing(Training(name, {**settings, **own})))
            for name, own in [*contest.ours.items()][: 1 if contest.against_network else None]
        ]
        rivals: list[Contestant] = [ours[0].updates_alone()] if contest.against_network else []
        if (python := python_of(options.peers, contest.peer)).exists():
            for ending, more in contest.variants:
                command = driver_command(python, contest.driver, driver_settings(settings, contest.options | more))
                rivals.append(stack.enter_context(closing(PeerProcess(contest.peer + ending, command))))
        contestants: list[Contestant] = [*ours, *rivals]
        left_s = contest.budget_s - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), contest.title)
        rates = {name: turn.rates for name, turn in turns.items()}
        return {
            "title": f"{contest.title}: {contest.env or f'{options.env} (dqn84), Nature-CNN'}",
            "contestants": {c.name: _describe(turns[c.name], c) for c in contestants},
            "ratios": {
                f"{c.name} / {rival.name}": ratio(rates[c.name], rates[rival.name]) for rival in rivals for c in ours
            },
        }


def run_bound(settings: Settings, options: TrainingOptions) -> Result:
    """Compares ours with the two-resource bound of the cores."""
    start = time.perf_counter()
    with ExitStack() as stack:
        training = stack.enter_context(closing(Training("ours", {**settings, "env": options.env})))
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
            "ratios": {"ours / bound": ratio(turns["ours"].rates, bound.rates)},
        }


def _describe(turns: Turns, contestant: Contestant | None = None) -> Result:
    described: Result = {"steps_per_second": turns.median, "rates": turns.rates}
    if isinstance(contestant, Training | PeerProcess):
        described |= {"facts": contestant.facts, "steps_per_update": contestant.steps / max(contestant.updates, 1)}
    return described


def show(contest: Result) -> None:
    """Prints one contest's table."""
    print(f"\n{contest['title']}; medians, with 95 % intervals")
    print(f"{'':28}{'steps/s':>9}{'steps/update':>14}{'parameters':>12}")
    for name, contestant in contest["contestants"].items():
        line = f"{name:28}{contestant['steps_per_second']:9,.0f}"
        if "facts" in contestant:
            line += f"{contestant['steps_per_update']:14,.0f}{contestant['facts']['parameters']:12,}"
        print(line)
    for name, contestant in contest["contestants"].items():
        facts = contestant.get("facts", {})
        if facts:
            print(f"{name}: " + ", ".join(f"{fact}={value}" for fact, value in facts.items() if fact != "parameters"))
    for name, value in contest["ratios"].items():
        print(f"{name:44}{format_ratio(value)}")


def main() -> None:
    parser = make_parser(__doc__)
    add_options(parser, TrainingOptions)
    parser.add_argument("--install-peers", action="store_true", help="only create the peers' environments, with pip")
    given: dict[str, Any] = vars(parser.parse_args())
    if given.pop("install_peers"):
        install_peers(given["peers"])
    else:
        run(TrainingOptions(**given))


if __name__ == "__main__":
    sys.exit(run_program(main))
