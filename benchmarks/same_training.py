"""Says whether training is the same with both simulators of Atari games, bit for bit.

python benchmarks/same_training.py [--steps 100000] [--json benchmarks/results/same_training.json] [CASE ...]

Each case is trained with --simulator ale and with --simulator native, by `python -m accel_rl train` in its default way,
with simulator processes. Compared are digests of the policy, of what its updates keep (parameters, the optimizer's
state) and of progress.csv without times: rewards, losses, evaluations. The file gets every run when it has ended; runs
that it holds already, of as many steps with the same settings, are not trained again. Exit status 1 if anything
differs. The cases and their settings are those of CASES.
"""

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accel_rl.bench.output import write_json
from accel_rl.errors import RunError, UsageError, unknown
from accel_rl.hardware.description import describe_machine
from accel_rl.training import checkpoint
from command_line import make_parser, run_program

SIMULATORS = ("ale", "native")
GAMES = ("pong", "breakout", "seaquest", "space_invaders")
# name: settings
CASES: dict[str, dict[str, Any]] = {
    **{f"{algo}_{game}": {"algo": algo, "env": game} for algo in ("a2c", "dqn") for game in GAMES},
    "a2c_sticky": {"algo": "a2c", "env": "breakout", "repeat_action_probability": 0.25},
    "dqn_v5": {"algo": "dqn", "env": "breakout", "env_preset": "v5"},
    "a2c_whole_games": {"algo": "a2c", "env": "breakout", "episodic_lives": False},
    "a2c_time_limit": {"algo": "a2c", "env": "pong", "max_episode_steps": 200, "reset_mode": "wait"},
    "ppo_color": {"algo": "ppo", "env": "breakout", "env_preset": "dqn84", "color": True, "frame_stack": 1},
}
COMMON = {"device": "cpu", "seed": 1, "tensorboard": False, "sampling_threads": 1, "learning_threads": 1}


def settings_of(case: str, steps: int) -> dict[str, Any]:
    """Returns a case's settings for a run of that many steps, in which all of its phases occur."""
    settings = {**COMMON, **CASES[case], "steps": steps, "decorrelation_steps": 200}
    settings |= {"log_interval_steps": max(steps // 20, 1), "eval_interval_steps": steps // 2, "eval_episodes": 4}
    settings |= {"eval_steps": steps // 4, "checkpoint_interval_steps": steps}
    if settings["algo"] == "dqn":
        settings |= {"warmup_steps": steps // 5, "replay_size": steps // 2, "checkpoint_replay": False}
        settings |= {"epsilon_steps": steps // 2, "target_interval_steps": steps // 20}
    return settings


def train(settings: dict[str, Any], simulator: str) -> dict[str, Any]:
    """Trains a run in a process of its own; returns its digests, its last reward and its seconds.

    Raises RunError if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        words = [str(word) for name, value in settings.items() for word in flag(name, value)]
        command = [sys.executable, "-m", "accel_rl", "train", *words, "--simulator", simulator, "--out", str(folder)]
        start = time.perf_counter()
        result = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        seconds = time.perf_counter() - start
        if result.returncode:
            raise RunError(f"{' '.join(command)} failed:\n{result.stderr.decode().strip()}")
        return {**read(folder), "seconds": round(seconds, 1)}


def flag(name: str, value: Any) -> tuple[Any, ...]:
    """Returns the words of the command line that give a setting this value."""
    option = name.replace("_", "-")
    return (f"--{'' if value else 'no-'}{option}",) if isinstance(value, bool) else (f"--{option}", value)


def read(folder: Path) -> dict[str, Any]:
    """Returns what is compared of the run in a folder, and its last mean reward."""
    state = checkpoint.load(folder / "checkpoint.pt")
    with (folder / "progress.csv").open(newline="") as file:
        rows = [
            {name: value for name, value in row.items() if not name.startswith("time/")} for row in csv.DictReader(file)
        ]
    found = {name: digest(state[name]) for name in ("policy", "update")}
    rewards = [float(row["rollout/ep_rew_mean"]) for row in rows if row.get("rollout/ep_rew_mean")]
    return {**found, "progress": sha256(json.dumps(rows).encode()), "last_reward": rewards[-1] if rewards else None}


def digest(state: Any) -> str:
    """Returns a digest of all arrays in a state, with their names, types and shapes."""
    return sha256(b"".join(name.encode() + content for name, content in contents("", state)))


def contents(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """Yields the name of each value in a nested one, and its bytes."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from contents(f"{name}/{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from contents(f"{name}/{index}", item)
    elif isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        yield f"{name} {array.dtype} {array.shape}", array.tobytes()
    else:
        yield name, repr(value).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differences(runs: dict[str, Any]) -> list[str]:
    """Returns what differs between both simulators' runs."""
    first, second = (runs[simulator] for simulator in SIMULATORS)
    return [part for part in ("policy", "update", "progress") if first[part] != second[part]]


def compare(cases: Sequence[str], steps: int, file: Path) -> bool:
    """Trains what `file` does not hold yet and prints what differs; returns whether nothing does.

    Raises UsageError for an unknown case or too few steps, RunError if a run fails."""
    for case in cases:
        if case not in CASES:
            raise unknown("case", case, CASES)
    if steps < 1000:
        raise UsageError(f"steps={steps} must be at least 1000, so that all phases of training occur")
    known: dict[str, Any] = json.loads(file.read_text())["cases"] if file.exists() else {}
    for case in cases:
        settings = settings_of(case, steps)
        if known.get(case, {}).get("settings") != settings:
            known[case] = {"settings": settings}
        for simulator in SIMULATORS:
            if simulator not in known[case]:
                known[case][simulator] = train(settings, simulator)
                write_json(file, {"machine": describe_machine(), "cases": known})
        different = differences(known[case])
        each = (known[case][simulator] for simulator in SIMULATORS)
        figures = ", ".join(f"{run['seconds']:.0f} s" for run in each)
        print(f"{case:20} {'DIFFERENT: ' + ', '.join(different) if different else 'equal'} ({figures})", flush=True)
    return not any(differences(known[case]) for case in cases)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases among {', '.join(CASES)} (all)")
    parser.add_argument("--steps", type=int, default=100_000, help="steps of each run (100000)")
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("benchmarks/results/same_training.json"),
        help="file of the results (%(default)s)",
    )
    options = parser.parse_args()
    equal: list[bool] = []
    status = run_program(lambda: equal.append(compare(options.cases or [*CASES], options.steps, options.json)))
    return status or int(not all(equal))


if __name__ == "__main__":
    sys.exit(main())
