"""Trains environments of many packages for a short time each, as a user would, and records the scores.

python benchmarks/environments.py [--only NAME ...] [--table] [--json benchmarks/results/environments.json]

Run it from the repository's root. Each case of CASES is one `accel-rl train` with the algorithm's defaults, one
`accel-rl eval` of the final policy over 20 games, and 20 games of uniformly random actions. Each case is added to the
file when it ends, and is not run again with the same command. At the end the program prints the table of
docs/environments.md (--table: nothing else). The cases need
`pip install "gymnasium[classic-control,box2d,mujoco,toy-text]" minigrid highway-env crafter pettingzoo`.
"""

import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import accel_rl
from accel_rl.bench.output import write_json
from accel_rl.envs import EnvConfig, make_env
from accel_rl.errors import RunError
from accel_rl.hardware.description import describe_machine
from command_line import check_names, make_parser, run_program

VERSION = 1  # version of the JSON format
RESULTS = Path("benchmarks/results/environments.json")
GAMES = 20
SEED = 1
EVAL_SEED = 1001

Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A line of the table. package: the name for pip. flags: those of `accel-rl train`, without the seed. is_refused:
    the command must end with a message instead of a policy."""

    package: str
    flags: str
    is_refused: bool = False

    @property
    def command(self) -> str:
        """The command that a user types; the runs below add --out."""
        return f"accel-rl train {self.flags} --seed {SEED}"


CASES = {
    "cartpole": Case("gymnasium", "--algo ppo --env CartPole-v1 --steps 50000"),
    "acrobot": Case("gymnasium", "--algo a2c --env Acrobot-v1 --steps 100000"),
    "mountain_car": Case("gymnasium", "--algo dqn --env MountainCar-v0 --steps 100000"),
    "mountain_car_continuous": Case("gymnasium", "--algo ppo --env MountainCarContinuous-v0 --steps 50000"),
    "pendulum": Case("gymnasium", "--algo ppo --env Pendulum-v1 --steps 100000"),
    "frozen_lake": Case("gymnasium", "--algo ppo --env FrozenLake-v1 --steps 50000"),
    "taxi": Case("gymnasium", "--algo dqn --env Taxi-v4 --steps 50000"),
    "blackjack": Case("gymnasium", "--algo ppo --env Blackjack-v1 --steps 50000"),
    "lunar_lander": Case("Box2D", "--algo ppo --env LunarLander-v3 --steps 200000"),
    "lunar_lander_dqn": Case("Box2D", "--algo dqn --env LunarLander-v3 --steps 100000"),
    "lunar_lander_continuous": Case(
        "Box2D", "--algo ppo --env LunarLander-v3 --env-options '{continuous: true}' --steps 100000"
    ),
    "bipedal_walker": Case("Box2D", "--algo ppo --env BipedalWalker-v3 --steps 100000"),
    "inverted_pendulum": Case("mujoco", "--algo ppo --env InvertedPendulum-v5 --steps 50000"),
    "half_cheetah": Case("mujoco", "--algo ppo --env HalfCheetah-v5 --steps 100000"),
    "minigrid_empty": Case("minigrid", "--algo ppo --env minigrid:MiniGrid-Empty-5x5-v0 --steps 20000"),
    "minigrid_door_key": Case(
        "minigrid",
        "--algo ppo --env minigrid:MiniGrid-DoorKey-5x5-v0 --wrappers minigrid.wrappers:ImgObsWrapper --steps 60000",
    ),
    "minigrid_four_rooms": Case(
        "minigrid",
        "--algo ppo --env minigrid:MiniGrid-FourRooms-v0 --wrappers minigrid.wrappers:RGBImgPartialObsWrapper "
        "--steps 30000",
    ),
    "highway": Case("highway-env", "--algo dqn --env highway_env:highway-fast-v0 --steps 5000"),
    "parking": Case("highway-env", "--algo ppo --env highway_env:parking-v0 --steps 10000"),
    "pong": Case("ale-py", "--algo ppo --env pong --steps 50000"),
    "breakout_84": Case("ale-py", "--algo a2c --env breakout --env-preset dqn84 --steps 50000"),
    "freeway_v5": Case("ale-py", "--algo ppo --env ALE/Freeway-v5 --env-preset v5 --steps 50000"),
    "crafter": Case("crafter", "--algo ppo --env benchmarks.crafter_env:Crafter --steps 30000"),
    "tic_tac_toe": Case("pettingzoo", "--algo ppo --env pettingzoo.classic.tictactoe_v3:env --steps 50000", True),
}


def run_case(case: Case) -> Result:
    """Returns a case's part of the JSON. Raises RunError if its training or evaluation fails."""
    about = {"command": case.command, "package": f"{case.package} {version(case.package)}"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        start = time.perf_counter()
        trained = accel("train", *shlex.split(case.command)[2:], "--out", str(folder))
        seconds = time.perf_counter() - start
        if case.is_refused:
            return {**about, "refused": refusal(trained)}
        check(trained)
        steps = json.loads((folder / "summary.json").read_text())["total_timesteps"]
        score = evaluate(folder)
        random = play_randomly(accel_rl.load(folder, trust=True).config.env)
    figures = {"steps": steps, "seconds": round(seconds, 1), "score": score, "random_score": fmean(random)}
    return {**about, **figures, "machine": describe_machine()}


def accel(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "accel_rl", *words], capture_output=True, text=True)


def check(process: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Returns the process, with its warnings printed. Raises RunError if it has failed."""
    print(process.stderr, end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise RunError(f"{shlex.join(process.args)} ended with status {process.returncode}")
    return process


def evaluate(run_dir: Path) -> Result:
    """Returns the score of the run's final policy. Raises RunError if the evaluation fails."""
    options = ("--episodes", str(GAMES), "--seed", str(EVAL_SEED), "--trust")
    score: Result = json.loads(check(accel("eval", str(run_dir), *options)).stdout)
    return score


def refusal(process: subprocess.CompletedProcess[str]) -> str:
    """Returns the line that refuses a command. Raises RunError if it is not refused, or if it prints more."""
    lines = process.stderr.splitlines()
    if process.returncode != 2 or len(lines) != 1:
        raise RunError(f"{shlex.join(process.args)} should be refused in one line, but ended with:\n{process.stderr}")
    return lines[0]


def play_randomly(config: EnvConfig, games: int = GAMES) -> list[float]:
    """Returns the raw scores of whole games with uniformly random actions."""
    env = make_env(config.env_id, config.preset, None, config.simulator, config.wrappers, **config.options)
    actions = env.action_space  # keep it: some environments make a new one at each reset, without a seed
    actions.seed(EVAL_SEED)
    scores = [0.0]
    env.reset(seed=EVAL_SEED)
    while True:
        _, reward, terminated, truncated, info = env.step(actions.sample())
        scores[-1] += info.get("score", float(reward))  # "score": an Atari game, whose rewards are clipped
        if terminated or truncated:
            if info.get("game_over", True):  # else a life was lost
                if len(scores) == games:
                    return scores
                scores.append(0.0)
            env.reset()


def run(names: Sequence[str], file: Path) -> Result:
    """Runs the cases that `file` lacks; returns its contents, in the order of CASES.

    Raises UsageError for an unknown case, RunError if one fails."""
    check_names("case", names, CASES)
    known: Result = json.loads(file.read_text())["cases"] if file.exists() else {}
    for name in names:
        if known.get(name, {}).get("command") != CASES[name].command:
            print(f"{name}: {CASES[name].command}", flush=True)
            known[name] = run_case(CASES[name])
            known = {each: known[each] for each in CASES if each in known}
            write_json(file, {"benchmark": "environments", "version": VERSION, "games": GAMES, "cases": known})
            print(row(known[name]), flush=True)
    return known


def table(cases: Iterable[Result]) -> str:
    """Returns the cases as a table in Markdown."""
    return "\n".join(["| needs | command | score | random | seconds |", "|---|---|---|---|---|", *map(row, cases)])


def row(case: Result) -> str:
    """Returns a case's line of the table."""
    if "refused" in case:
        figures = f"refused: {case['refused'].removeprefix('accel-rl: ')} | |"
    else:
        mean, std = case["score"]["mean_reward"], case["score"]["std_reward"]
        figures = f"{number(mean)} ± {number(std)} | {number(case['random_score'])} | {case['seconds']:.0f}"
    return f"| {case['package']} | `{case['command']}` | {figures} |"


def number(value: float) -> str:
    """Returns a number with three digits, since 20 games justify no more."""
    return f"{value:.{max(0, 2 - int(math.log10(max(abs(value), 1.0))))}f}"


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[*CASES], metavar="NAME", help=f"cases: {', '.join(CASES)} (all)")
    parser.add_argument("--table", action="store_true", help="run nothing; print the file's results as a table")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the results (%(default)s)")
    options = parser.parse_args()
    sys.path.insert(0, os.getcwd())  # for the environments of this folder
    names = () if options.table else options.only
    return run_program(lambda: print(table(run(names, options.json).values())))


if __name__ == "__main__":
    sys.exit(main())
