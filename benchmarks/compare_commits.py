"""Measures which of two checkouts of this repository is faster: their contestants take turns in one run.

python benchmarks/compare_commits.py OLD_CHECKOUT NEW_CHECKOUT [--rounds 20] [--contests a2c ppo ...] [--bf16]
    [--json FILE]

Contests:

    a2c       accel-rl train, A2C on Pong, 16 environments, rollouts of 5 steps
    ppo       the same with PPO, 8 environments, rollouts of 128 steps
    dqn       the same with DQN, 32 environments, rollouts of 4 steps, batches of 32
    sampling  the sampler with random actions, Pong, 8 environments per core
    act_a3c, act_nature      actions for 8 stacks of frames, by A3C-Net at 104x80 or Nature-CNN at 84x84; one thread
    learn_a3c, learn_nature  A2C updates of 80 samples with these networks; two threads
    startup   the time from the start of `accel-rl train` to the row of its first update; 10 rounds at most

A contestant is a process of its own that imports its checkout's accel_rl. It lives for the whole contest; between its
turns all its processes are stopped (SIGSTOP). Training runs are ordinary ones, started by the command line, which is
stable across commits. With --bf16 the new checkout takes part twice, the second time with its network in bfloat16.
Steps of a training are those of the rows in progress.csv: a turn ends with the first row after its seconds, and its
rate is the steps since the last turn's end over the time in which the run was not stopped. The ratios new / old are
medians over the rounds with 95 % intervals, and more is better; for startup, they are those of times, old / new.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import FULL_ROUNDS, Builder, Schedule, Shares, Turns, compare, format_ratio, ratio
from accel_rl.hardware.description import describe_machine, format_machine
from checkouts import check_checkout, describe_commit, environment_of
from command_line import TurnOptions, add_json, check_names, make_parser, run_program
from peer_process import PeerProcess, driver_command
from process_tree import ProcessTree

VERSION = 1  # of the JSON
FOREVER = 10**9
START_TIMEOUT_S, ROW_TIMEOUT_S = 300.0, 120.0
POLL_S = 0.003
MAX_STARTUP_ROUNDS = 10
TARGET = 0.97  # new / old

COMMON = {
    "env": "pong",
    "device": "cpu",
    "seed": 0,
    "eval-interval-steps": 0,
    "checkpoint-interval-steps": FOREVER,
    "decorrelation-steps": 100,  # the presets' numbers cost seconds at the start
    "env-timeout-s": 10**6,  # a run that is stopped must not take its workers for hung
}
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
NETWORK: dict[str, dict[str, Any]] = {
    f"{work}_{network}": {"work": work, "network": network, **settings}
    for work, settings in (("act", {"num_envs": 8}), ("learn", {"num_envs": 16, "horizon": 5, "threads": 2}))
    for network in ("a3c", "nature")
}
CONTESTS = (*TRAINING, *NETWORK, "sampling", "startup")
WITHOUT_NETWORK = ("sampling", "startup")

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TurnOptions):
    """Options of the comparison. Raises UsageError for a value out of range, and for folders that are no checkouts."""

    old: Path
    new: Path
    seconds: float = 2.5
    rounds: int = FULL_ROUNDS
    contests: Sequence[str] = CONTESTS
    bf16: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("contest", self.contests, CONTESTS)
        for checkout in (self.old, self.new):
            check_checkout(checkout)


class ProgressFile:
    """Reads the steps of a run from its progress.csv."""

    def __init__(self, tree: ProcessTree, path: Path):
        self._tree, self._path = tree, path
        self._seen: tuple[int, int] | None = None

    def skip(self) -> None:
        """Lets `wait_for_row` wait for a row that is written from now on."""
        self._seen = self._version()

    def wait_for_row(self, timeout_s: float) -> int:
        """Waits for a row that is newer than the last one seen; returns the total number of steps in the last row.

        Raises RunError if the program ends before, or takes longer."""
        deadline = time.perf_counter() + timeout_s
        while True:
            if (version := self._version()) != self._seen:
                self._seen = version
                if (steps := self._last_steps()) is not None:
                    return steps
            if self._tree.process.poll() is not None:
                raise self._tree.error("has ended")
            if time.perf_counter() > deadline:
                raise self._tree.error(f"has written no row for {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def _version(self) -> tuple[int, int] | None:
        """Returns what changes with every row, without reading the file."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size

    def _last_steps(self) -> int | None:
        lines = self._path.read_text().splitlines(keepends=True)
        if len(lines) < 2 or not lines[-1].endswith("\n"):
            return None
        return int(float(lines[-1].split(",")[lines[0].strip().split(",").index("time/total_timesteps")]))


class TrainingRun:
    """A run of `accel-rl train` with a checkout's accel_rl, which is stopped between its turns.

    first_turn_steps: turns begin at the first row with this many steps or more."""

    def __init__(self, name: str, checkout: Path, settings: dict[str, Any], first_turn_steps: int = 0):
        self.name, self.shares = name, Shares()
        self._tree, self._progress = start_training(name, checkout, {**settings, "steps": FOREVER})
        try:
            self._steps = -1
            while self._steps < first_turn_steps:
                self._steps = self._progress.wait_for_row(START_TIMEOUT_S)
            self._tree.pause()
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> float:
        """Takes a turn; returns steps/s."""
        before, start = self._steps, time.perf_counter()
        self._tree.resume()
        time.sleep(seconds)
        self._progress.skip()
        self._steps = self._progress.wait_for_row(ROW_TIMEOUT_S)
        wall = time.perf_counter() - start
        self._tree.pause()
        return (self._steps - before) / wall

    def close(self) -> None:
        self._tree.kill()


class StartUp:
    """Starts `accel-rl train` with a checkout's accel_rl, over and over. Its rate is starts/s."""

    def __init__(self, name: str, checkout: Path):
        self.name, self.shares, self._checkout = name, Shares(), checkout
        settings = TRAINING["a2c"]
        self._settings = {**settings, "decorrelation-steps": 0, "steps": settings["envs"] * settings["horizon"]}

    def run(self, seconds: float) -> float:
        """Starts a run of one rollout and one update, and waits for its row. The turn has no given length."""
        start = time.perf_counter()
        tree, progress = start_training(self.name, self._checkout, self._settings)
        try:
            progress.wait_for_row(START_TIMEOUT_S)
            return 1 / (time.perf_counter() - start)
        finally:
            tree.kill()

    def close(self) -> None:
        pass


def start_training(name: str, checkout: Path, settings: dict[str, Any]) -> tuple[ProcessTree, ProgressFile]:
    """Starts `accel-rl train` with these flags and those of COMMON."""
    given = {**COMMON, **settings, "out": "run"}
    flags = [f"--{flag}" if value is True else f"--{flag}={value}" for flag, value in given.items()]
    command = [sys.executable, "-m", "accel_rl", "train", *flags, "--no-tensorboard"]
    tree = ProcessTree(f"the run of {name}", command, environment_of(checkout))
    return tree, ProgressFile(tree, tree.folder / "run" / "progress.csv")


def contestant(contest: str, name: str, checkout: Path, bf16: bool = False) -> Builder:
    """Returns what builds a checkout's contestant: "old", "new" or "new-bf16"."""
    if contest == "startup":
        return partial(StartUp, name, checkout)
    if contest == "sampling":
        command = driver_command(sys.executable, "checkout_sampling", {})
        return partial(PeerProcess, name, command, environment_of(checkout))
    if contest in NETWORK:
        command = driver_command(sys.executable, "checkout_network", {**NETWORK[contest], "bf16": int(bf16)})
        return partial(PeerProcess, name, command, environment_of(checkout))
    settings = {**TRAINING[contest], **({"precision": "bf16"} if bf16 else {})}
    return partial(TrainingRun, name, checkout, settings, FIRST_TURN_STEPS.get(contest, 0))


def run(options: CompareOptions) -> Result:
    """Runs all contests, prints their ratios and writes the file; returns what the JSON holds."""
    create_parents(options.json)
    checkouts = {"old": options.old, "new": options.new}
    commits = {name: describe_commit(checkout) for name, checkout in checkouts.items()}
    print(format_machine(describe_machine()))
    print(f"old: {commits['old']}, new: {commits['new']}; medians, with 95 % intervals")
    contests: dict[str, Result] = {}
    for name in options.contests:
        rounds = min(options.rounds, MAX_STARTUP_ROUNDS) if name == "startup" else options.rounds
        builders = [contestant(name, each, checkout) for each, checkout in checkouts.items()]
        if options.bf16 and name not in WITHOUT_NETWORK:
            builders.append(contestant(name, "new-bf16", options.new, bf16=True))
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
        **{f"{name} / old": ratio(turn.rates, turns["old"].rates) for name, turn in turns.items() if name != "old"},
        "at least": TARGET,
    }


def show(name: str, contest: Result) -> None:
    """Prints one contest's line."""
    medians = contest["medians"]
    for new in [each for each in medians if each != "old"]:
        if contest["unit"] == "starts/s":
            times = f"{1 / medians['old']:8.2f} s {1 / medians[new]:8.2f} s      old / {new}"
        else:
            times = f"{medians['old']:8,.0f}   {medians[new]:8,.0f}   steps/s, {new} / old"
        ratio_text = format_ratio(contest[f"{new} / old"])
        print(f"{name:13}{times:50}{ratio_text}, should be at least {TARGET}", flush=True)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("old", type=Path, metavar="OLD_CHECKOUT", help="folder of the commit to compare with")
    parser.add_argument("new", type=Path, metavar="NEW_CHECKOUT", help="folder of the commit that is judged")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a turn, in seconds (2.5)")
    parser.add_argument("--rounds", type=int, default=FULL_ROUNDS, help=f"rounds of each contest ({FULL_ROUNDS})")
    names = f"contests among {', '.join(CONTESTS)} (all)"
    parser.add_argument("--contests", nargs="+", default=CONTESTS, metavar="CONTEST", help=names)
    parser.add_argument("--bf16", action="store_true", help="the new checkout also takes part in bfloat16")
    add_json(parser)
    return run_program(lambda: run(CompareOptions(**vars(parser.parse_args()))))


if __name__ == "__main__":
    sys.exit(main())
