"""Prints through which files of the package one sample passes and one update: python benchmarks/trace_files.py algo=ppo

A file counts if its functions run, here or in a simulator process, in one `collect` or `learn` of a warm training."""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import accel_rl
from accel_rl.samplers import worker, worker_pool
from accel_rl.training.build import check
from accel_rl.training.resolve import resolve
from accel_rl.tune.points import Point
from accel_rl.tune.tuning import build_training, short_settings
from command_line import run_program

PACKAGE = Path(accel_rl.__file__).parent
FOLDER = "ACCEL_RL_TRACES"  # the environment variable that tells simulator processes where to leave their calls


def record() -> dict[str, list[int]]:
    """Records from now on, by file, when its functions are called: by the clock that all processes share."""
    calls: dict[str, list[int]] = defaultdict(list)
    sys.setprofile(lambda frame, event, _: calls[frame.f_code.co_filename].append(time.monotonic_ns()))
    return calls


def run_worker(fd: int) -> None:
    """Runs a simulator process, which leaves its calls in a file of the folder."""
    calls = record()
    worker.main(fd)
    sys.setprofile(None)
    Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(calls))


def trace(settings: dict[str, Any]) -> dict[str, list[Path]]:
    """Returns the files of a sample and those of an update, of a training with these settings."""
    config, serve = check(resolve(settings)), worker_pool.simulator_server
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        worker_pool.simulator_server = lambda _, *rest: serve("trace_files:run_worker", *rest)
        try:
            training: Any = build_training({**settings, **short_settings(config)}, config.spec, Point(()))
        finally:
            worker_pool.simulator_server = serve
        calls, start = record(), time.monotonic_ns()
        rollout = training._sampler.collect(first_step=training.total_steps)
        middle = time.monotonic_ns()
        training.algo.learn(rollout, training._update)
        end = time.monotonic_ns()
        sys.setprofile(None)
        training.close()
        of_workers = [json.loads(file.read_text()) for file in Path(folder).iterdir()]

    def files(start: int, end: int, *recorded: dict[str, list[int]]) -> list[Path]:
        found = {Path(name) for each in recorded for name in each if any(start < t < end for t in each[name])}
        return sorted(file for file in found if file.is_relative_to(PACKAGE))

    return {"sample": files(start, middle, calls, *of_workers), "update": files(middle, end, calls)}


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    for name, files in trace({"device": "cpu", "envs": 4, "workers": 2} | given).items():
        counts = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in files}
        rest = [count for file, count in counts.items() if not file.startswith("models/")]
        print(f"one {name}: {len(files)} files, {sum(counts.values()):,} lines", end="; ")
        print(f"without models/: {len(rest)} files, {sum(rest):,} lines")
        print(*(f"  {count:5}  {file}" for file, count in counts.items()), sep="\n")


if __name__ == "__main__":
    sys.exit(run_program(main))
