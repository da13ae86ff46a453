"""Tests whether a refactoring changed any number: trains tiny runs with two checkouts and compares their files.

python benchmarks/same_results.py OLD_CHECKOUT NEW_CHECKOUT [RUN ...]

Each run of RUNS is trained in one go, and again in two halves with a resume between them. The program compares digests
of the arrays in checkpoints (parameters, optimizer state, simulators, random generators), of replays, and of
progress.csv without times. The names and the order of arrays are ignored. The exit status is 1 if anything differs.

Both checkouts run at the same time, on one thread each.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_rl.errors import RunError
from checkouts import check_checkout, environment_of
from command_line import check_names, make_parser, run_program
from peer_process import driver_command

COMMON = {
    "device": "cpu",
    "sampler": "serial",
    "tensorboard": False,
    "decorrelation_steps": 20,
    "seed": 3,
    "eval_interval_steps": 0,
    "log_interval_steps": 40,
    "checkpoint_interval_steps": 10**6,
    "sampling_threads": 1,
    "learning_threads": 1,
}
PIXELS = {"env": "pong", "frame_shape": [42, 42], "max_episode_steps": 30, "noop_max": 3, "network": "a3c"}
CARTPOLE = {"env": "CartPole-v1", "envs": 4}
REPLAY = {
    "batch_size": 16,
    "warmup_steps": 100,
    "replay_size": 600,
    "horizon": 4,
    "epsilon_steps": 300,
    "target_interval_steps": 80,
}
NORMALIZED = {"normalize_observations": True, "normalize_returns": True}
MULTI_BATCH = {"batches": 4, "batch_steps": 5}
AUXILIARY_VECTORS = {"auxiliary": ["value_replay", "reward_prediction"], "auxiliary_replay_steps": 30}
AUXILIARY = {
    **AUXILIARY_VECTORS,
    "auxiliary": ["pixel_control", "value_replay", "reward_prediction"],
    "auxiliary_start": "all_when_full",
    "core": "lstm",
}
QUEUED = {"sampler": "queued", "deterministic": True}
QUEUED_TASKS = {**QUEUED, "dynamic_adjustment": False, "auxiliary_replay_steps": 30}

# name: (settings, steps)
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "a2c": ({"algo": "a2c", **PIXELS, "envs": 8, "horizon": 5}, 320),
    "a2c_lstm": ({"algo": "a2c", "preset": "a2c_lstm", **CARTPOLE, "horizon": 10, **NORMALIZED}, 400),
    "ppo": ({"algo": "ppo", **PIXELS, "envs": 4, "horizon": 10}, 160),
    "ppo_vec": ({"algo": "ppo", **CARTPOLE, "horizon": 16}, 512),
    "ppo_lstm": ({"algo": "ppo", "preset": "ppo_lstm", **CARTPOLE, "horizon": 16, "previous_inputs": True}, 256),
    "vtrace": ({"algo": "vtrace", **PIXELS, "envs": 8, "horizon": 5, **MULTI_BATCH}, 400),
    "vtrace_vec": ({"algo": "vtrace", **CARTPOLE, "envs": 8, "horizon": 8}, 640),
    "dqn": ({"algo": "dqn", **PIXELS, "envs": 4, **REPLAY}, 320),
    "dqn_vec": ({"algo": "dqn", **CARTPOLE, **REPLAY}, 640),
    "eps_rainbow": ({"algo": "eps_rainbow", **PIXELS, "envs": 4, **REPLAY}, 320),
    "rainbow_vec": ({"algo": "eps_rainbow", **CARTPOLE, **REPLAY}, 640),
    "n_step_q": ({"algo": "n_step_q", **CARTPOLE, "horizon": 8}, 640),
    "sarsa": ({"algo": "one_step_sarsa", **CARTPOLE, "horizon": 8}, 640),
    "ga3c": ({"algo": "ga3c", **CARTPOLE, "horizon": 8, "normalize_returns": False}, 640),
    "unreal": ({"algo": "a2c", **PIXELS, "envs": 4, "horizon": 5, **AUXILIARY}, 320),
    "ppo_unreal": ({"algo": "ppo", **CARTPOLE, "horizon": 16, **AUXILIARY_VECTORS}, 512),
    "vtrace_unreal": ({"algo": "vtrace", **CARTPOLE, "envs": 8, "horizon": 8, **AUXILIARY_VECTORS}, 640),
    "alternating": ({"algo": "a2c", **CARTPOLE, "horizon": 8, "sampler": "alternating", "workers": 1}, 640),
    "queued": ({"algo": "ga3c", **CARTPOLE, "horizon": 8, "min_training_batch": 24, **QUEUED}, 640),
    "queued_lstm": ({"algo": "ppo", "preset": "ppo_lstm", **CARTPOLE, "horizon": 16, "minibatches": 3, **QUEUED}, 512),
    "gunreal": ({"algo": "gunreal", **PIXELS, "envs": 4, **QUEUED_TASKS}, 320),
}

Digests = dict[tuple[str, str], str]


def collect_digests(checkouts: Sequence[Path], runs: Sequence[str]) -> list[Digests]:
    """Trains the runs with each checkout; returns its digests by run and part. Raises RunError if a run fails."""
    command = driver_command(sys.executable, "checkout_digests", {})
    given = json.dumps({name: (COMMON | settings, steps) for name, (settings, steps) in RUNS.items() if name in runs})
    with contextlib.ExitStack() as stack:
        processes = []
        for checkout in checkouts:
            environment, pipe = {**environment_of(checkout), "OMP_NUM_THREADS": "1"}, subprocess.PIPE
            process = subprocess.Popen(command, env=environment, cwd=os.sep, stdin=pipe, stdout=pipe, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdin
            process.stdin.write(given)
            process.stdin.close()
            processes.append(process)
        found: list[Digests] = []
        for checkout, process in zip(checkouts, processes, strict=True):
            assert process.stdout
            lines = [json.loads(line) for line in process.stdout]
            if process.wait():
                raise RunError(f"training with {checkout} failed; see its traceback above")
            found.append({(line["run"], line["part"]): line["digest"] for line in lines})
        return found


def differences(old: Digests, new: Digests) -> list[str]:
    """Returns a line for every digest that differs or that only one side has."""
    return [
        f"{run:12} {part:24} {old.get((run, part), '-'):20} {new.get((run, part), '-')}"
        for run, part in sorted(old.keys() | new.keys())
        if old.get((run, part)) != new.get((run, part))
    ]


def compare(old: Path, new: Path, runs: Sequence[str]) -> bool:
    """Trains with both checkouts and prints the differences; returns whether there are none."""
    check_names("run", runs, RUNS)
    for checkout in (old, new):
        check_checkout(checkout)
    digests = collect_digests((old, new), runs)
    found = differences(*digests)
    for line in found:
        print(line)
    print(f"DIFFERENT: {len(found)} digests" if found else f"EQUAL: {len(digests[0])} digests")
    return not found


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("old", type=Path, metavar="OLD_CHECKOUT", help="folder of the commit to compare with")
    parser.add_argument("new", type=Path, metavar="NEW_CHECKOUT", help="folder of the commit to judge")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"runs among {', '.join(RUNS)} (all)")
    options = parser.parse_args()
    equal: list[bool] = []
    status = run_program(lambda: equal.append(compare(options.old, options.new, options.runs or [*RUNS])))
    return status or int(not all(equal))


if __name__ == "__main__":
    sys.exit(main())
