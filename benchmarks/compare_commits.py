"""Measures which of two checkouts of this repository is faster: their contestants take turns in one run.

python benchmarks/compare_commits.py OLD_CHECKOUT NEW_CHECKOUT [--rounds 20] [--contests a2c ppo ...] [--json FILE]

Contests:

    a2c       accel-rl train, A2C on Pong, 16 environments, rollouts of 5 steps
    ppo       the same with PPO, 8 environments, rollouts of 128 steps
    dqn       the same with DQN, 32 environments, rollouts of 4 steps, batches of 32
    sampling  the sampler with random actions, Pong, 8 environments per core
    startup   the time from the start of `accel-rl train` to the row of its first update; 10 rounds at most

A contestant is a separate process that imports its checkout's accel_rl. It lives for the whole contest; between its
turns, all its processes are stopped (SIGSTOP). Training runs are started by the command line, which is stable across
commits, and their steps are read from progress.csv. A turn ends with the first row after its seconds. Its rate is the
number of steps since the last turn's end over the time during which the run was not stopped. The ratios new / old are
medians over the rounds with 95 % intervals; higher is better. For startup, they are ratios of times, old / new.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accel_rl.bench.options import option
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import FULL_ROUNDS, Builder, Schedule, Shares, Turns, compare, format_ratio, ratio
from accel_rl.hardware.description import describe_machine, format_machine
from checkouts import check_checkout, describe_commit, environment_of
from command_line import TurnOptions, check_names, parse, run_program, seconds_option
from peer_process import PeerProcess, driver_command
from training_run import START_TIMEOUT_S, TrainingRun, start_training

VERSION = 1  # version of the JSON format
MAX_STARTUP_ROUNDS = 10
TARGET = 0.97  # new / old

TRAINING: dict[str, dict[str, Any]] = {
    "a2c": {"algo": "a2c", "envs": 16, "horizon": 5, "log-interval-steps": 400},
    "ppo": {"algo": "ppo", "envs": 8, "horizon": 128, "log-interval-steps": 1024},
    "dqn": {
        "algo": "dqn",
        "envs": 32,
        "horizon": 4,
        "batch-size": 32,
        "replay-size": 20_000,
        "warmup-steps": 2048,
        "log-interval-steps": 128,
    },
}
FIRST_TURN_STEPS = {"dqn": 2304}  # turns begin once the warm-up is over
CONTESTS = (*TRAINING, "sampling", "startup")

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TurnOptions):
    """Options of the comparison. Raises UsageError for a value out of range or a folder that is not a checkout."""

    old: Path
    new: Path
    seconds: float = seconds_option(2.5)
    rounds: int = option(FULL_ROUNDS, f"rounds of each contest ({FULL_ROUNDS})", type=int, metavar="N")
    full: bool = False  # without a flag, since the default is 20 rounds anyway
    contests: Sequence[str] = option(
        CONTESTS, f"contests among {', '.join(CONTESTS)} (all)", nargs="+", metavar="CONTEST"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("contest", self.contests, CONTESTS)
        for checkout in (self.old, self.new):
            check_checkout(checkout)


class StartUp:
    """A contestant that starts `accel-rl train` with a checkout's accel_rl, again and again. Its rate is starts/s."""

    def __init__(self, name: str, checkout: Path):
        self.name, self.shares, self._checkout = name, Shares(), checkout
        settings = TRAINING["a2c"]
        self._settings = {**settings, "decorrelation-steps": 0, "steps": settings["envs"] * settings["horizon"]}

    def run(self, seconds: float) -> float:
        """Starts a run of one rollout and one update, and waits for its row, however long the turn takes."""
        start = time.perf_counter()
        tree, progress = start_training(self.name, environment_of(self._checkout), self._settings)
        try:
            progress.wait_for_row(START_TIMEOUT_S)
            return 1 / (time.perf_counter() - start)
        finally:
            tree.kill()

    def close(self) -> None:
        pass


def contestant(contest: str, name: str, checkout: Path) -> Builder:
    """Returns the function that builds a checkout's contestant, "old" or "new"."""
    if contest == "startup":
        return partial(StartUp, name, checkout)
    if contest == "sampling":
        command = driver_command(sys.executable, "checkout_sampling", {})
        return partial(PeerProcess, name, command, environment_of(checkout))
    first_turn_steps = FIRST_TURN_STEPS.get(contest, 0)
    return partial(TrainingRun, name, environment_of(checkout), TRAINING[contest], first_turn_steps)


def run(options: CompareOptions) -> Result:
    """Runs all contests, prints their ratios and writes the file; returns the contents of the JSON."""
    create_parents(options.json)
    checkouts = {"old": options.old, "new": options.new}
    commits = {name: describe_commit(checkout) for name, checkout in checkouts.items()}
    print(format_machine(describe_machine()))
    print(f"old: {commits['old']}, new: {commits['new']}; medians, with 95 % intervals")
    contests: dict[str, Result] = {}
    for name in options.contests:
        rounds = min(options.rounds, MAX_STARTUP_ROUNDS) if name == "startup" else options.rounds
        builders = [contestant(name, each, checkout) for each, checkout in checkouts.items()]
        contests[name] = describe(name, compare(builders, Schedule(options.seconds, rounds), name))
        show(name, contests[name])
    result = {**describe_run("compare_commits", VERSION, options), "commits": commits, "contests": contests}
    write_json(options.json, result)
    return result


def describe(contest: str, turns: dict[str, Turns]) -> Result:
    """Returns one contest's part of the JSON."""
    return {
        "unit": "starts/s" if contest == "startup" else "steps/s",
        "rates": {name: turn.rates for name, turn in turns.items()},
        "medians": {name: turn.median for name, turn in turns.items()},
        "new / old": ratio(turns["new"].rates, turns["old"].rates),
        "at least": TARGET,
    }


def show(name: str, contest: Result) -> None:
    """Prints one contest's line."""
    old, new = (contest["medians"][checkout] for checkout in ("old", "new"))
    if contest["unit"] == "starts/s":
        times = f"{1 / old:8.2f} s {1 / new:8.2f} s      old / new"
    else:
        times = f"{old:8,.0f}   {new:8,.0f}   steps/s, new / old"
    print(f"{name:13}{times:50}{format_ratio(contest['new / old'])}, should be at least {TARGET}", flush=True)


def main() -> None:
    run(parse(__doc__, CompareOptions, "old", "new"))


if __name__ == "__main__":
    sys.exit(run_program(main))
