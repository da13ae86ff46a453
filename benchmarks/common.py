"""What the benchmarks share: alternating rounds, medians with intervals, the machine's name, the simulation limit."""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from accel_rl.affinity import available_cpus, physical_cores
from accel_rl.envs import EnvConfig, make_simulator

Contestant = Callable[[float], float]
"""Works for about that many seconds and returns its rate in steps/s."""


def alternate(contestants: dict[str, Contestant], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Rates of every contestant in every round; within a round they take turns, in an order that reverses."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for index in range(rounds):
        for name in list(contestants) if index % 2 == 0 else reversed(list(contestants)):
            rates[name].append(contestants[name](seconds))
        print(f"\rround {index + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return rates


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    """Median of the rounds' ratios, with a 95 % bootstrap interval."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {"median": statistics.median(ratios), "low": medians[50], "high": medians[-51]}


def show_ratio(value: dict[str, float]) -> str:
    return f"{value['median']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def machine() -> dict[str, Any]:
    """Names the machine: figures mean nothing without it."""
    model = platform.processor() or platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": model,
        "cores": len(physical_cores(available_cpus())),
        "gpus": gpus,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def describe(machine: dict[str, Any]) -> str:
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    return f"{machine['cpu']}, {machine['cores']} cores, {gpus}; Python {machine['python']}, torch {machine['torch']}"


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")


class SimulationLimit:
    """One bare process per core that does nothing but step its share of the environments with random actions.

    The same simulator as the sampler's: emulation, frame processing and resets, but no other process to wait for.
    """

    def __init__(self, env: EnvConfig, num_envs: int):
        cores = physical_cores(available_cpus())
        self._workers: list[tuple[subprocess.Popen[bytes], Connection[Any, Any]]] = []
        for index, core in enumerate(cores):
            ours, theirs = Pipe()
            share = num_envs // len(cores) + (index < num_envs % len(cores))
            command = [sys.executable, __file__, str(theirs.fileno()), str(core[0])]
            popen = subprocess.Popen(command, pass_fds=[theirs.fileno()])
            theirs.close()
            ours.send((env, share))
            self._workers.append((popen, ours))
        for _, control in self._workers:
            control.recv()

    def run(self, seconds: float) -> float:
        """Steps/s of all processes together."""
        for _, control in self._workers:
            control.send(seconds)
        return sum(float(control.recv()) for _, control in self._workers)

    def close(self) -> None:
        for popen, control in self._workers:
            control.close()
            popen.wait()


def _step_alone() -> None:
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    if sys.platform == "linux":
        os.sched_setaffinity(0, {int(sys.argv[2])})
    env, num_envs = control.recv()
    simulators = [make_simulator(env, np.random.SeedSequence(index)) for index in range(num_envs)]
    spec = simulators[0].spec
    rows = np.zeros((num_envs, *spec.row_shape), spec.row_dtype)
    for simulator, row in zip(simulators, rows, strict=True):
        simulator.reset(row)
    space = spec.action_space
    actions = [[space.sample() for _ in range(num_envs)] for _ in range(1000)]
    control.send("ready")
    step = 0
    while True:
        try:
            seconds = control.recv()
        except EOFError:
            return
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for simulator, row, action in zip(simulators, rows, actions[step % 1000], strict=True):
                if simulator.step(action, row).game_over:
                    simulator.reset(row)
            step += 1
            steps += num_envs
        control.send(steps / (time.perf_counter() - start))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--env", default="pong", help="game or environment")
    parser.add_argument("--env-preset", default="stooke", help="Atari's frames and episodes")
    parser.add_argument("--envs", type=int, default=16, help="environments")
    parser.add_argument("--rounds", type=int, default=20, help="rounds in which the contestants take turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each contestant in a round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser


if __name__ == "__main__":
    _step_alone()
