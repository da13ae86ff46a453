"""The simulation limit: bare processes that only simulate. `python -m accel_rl.bench.limit` is one of them.

Like the sampler's worker processes, they do not import torch.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from accel_rl.bench.timing import Repeated, Shares
from accel_rl.emulator.steps import GAME_OVER
from accel_rl.envs import EnvConfig, make_simulator
from accel_rl.envs.games.atari import game_name, make_options
from accel_rl.envs.games.emulator_choice import is_native
from accel_rl.envs.games.native import NativeBatch
from accel_rl.envs.spaces.conversion import from_env_action
from accel_rl.errors import RunError
from accel_rl.hardware.topology import available_cpus, physical_cores
from accel_rl.processes.child import leave_signals_to_parent
from accel_rl.processes.spawning import spawn_connected

NUM_DRAWN = 1000  # steps for which actions are drawn in advance; then they repeat


class SimulationLimit:
    """A contestant of bare processes, one on each of these logical CPUs (None: one per core).

    Each steps its share of the environments with random actions, as `bare_steps` does, and waits for no other process.
    CPUs without an environment have no process."""

    shares: Shares = {}

    def __init__(self, env: EnvConfig, num_envs: int, cpus: Sequence[int] | None, name: str):
        self.name = name
        cpus = [core[0] for core in physical_cores(available_cpus())] if cpus is None else cpus
        cpus = cpus[:num_envs]
        self._workers: list[tuple[subprocess.Popen[bytes], Connection[Any, Any]]] = []
        for index, cpu in enumerate(cpus):
            share = num_envs // len(cpus) + (index < num_envs % len(cpus))
            popen, ours = spawn_connected("accel_rl.bench.limit", cpu)
            ours.send((env, share))
            self._workers.append((popen, ours))
        self._receive_rates()

    def run(self, seconds: float) -> float:
        """Takes a turn; returns the total steps/s of all processes."""
        return sum(self._receive_rates(seconds))

    def _receive_rates(self, seconds: float | None = None) -> list[float]:
        """Returns each process's rate. seconds: how long each measures it first."""
        try:
            for _, control in self._workers if seconds else ():
                control.send(seconds)
            return [float(control.recv()) for _, control in self._workers]
        except (EOFError, ConnectionError):
            self.close()
            raise RunError("a process that measures the simulation limit has failed; see its traceback above") from None

    def close(self) -> None:
        for popen, control in self._workers:
            control.close()
            popen.wait()


def bare_steps(env: EnvConfig, num_envs: int, seed: int = 0) -> Callable[[], int]:
    """Returns a function that steps all environments once with random actions and returns how many there are.

    Emulation, frames and resets are those of the sampler's workers; Atari games start from prepared states. With the
    same seed, both simulators of Atari games play the same games."""
    seeds = np.random.SeedSequence(seed).spawn(num_envs)
    if is_native(env):
        return _native_steps(env, seeds, seed)
    simulators = [make_simulator(env, each, reserve=True) for each in seeds]
    spec = simulators[0].spec
    memory = np.zeros((num_envs, *spec.row_shape), spec.row_dtype)
    rows = [memory[column, ...] for column in range(num_envs)]  # the ellipsis makes a view, of scalar rows too
    for simulator, row in zip(simulators, rows, strict=True):
        simulator.reset(row)
    actions = _draw_actions(spec.action_space, num_envs, seed)

    def step() -> int:
        for simulator, row, action in zip(simulators, rows, next(actions), strict=True):
            if simulator.step(action, row).game_over:
                simulator.reset(row)
        return num_envs

    return step


def _native_steps(env: EnvConfig, seeds: Sequence[np.random.SeedSequence], seed: int) -> Callable[[], int]:
    game, options, num_envs = str(game_name(env.env_id)), make_options(env.preset, env.options), len(seeds)
    batch = NativeBatch(game, options, seeds, reserve=True)
    frames = np.zeros((num_envs, *batch.spec.row_shape), np.uint8)
    play = batch.bind_step(frames, np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int64))
    for column in range(num_envs):
        batch.reset_one(column, frames[column])
    batch.stepping[:] = True
    actions = _draw_actions(batch.spec.action_space, num_envs, seed)

    def step() -> int:
        batch.set_actions(np.array(next(actions)))
        if play():
            for column in np.flatnonzero(batch.events & GAME_OVER).tolist():
                batch.reset_one(column, frames[column])
            batch.stepping[:] = True
        return num_envs

    return step


def _draw_actions(space: Any, num_envs: int, seed: int) -> Iterator[list[Any]]:
    """Returns an endless iterator over random actions of all environments, which repeat after NUM_DRAWN steps."""
    space.seed(seed)
    drawn = [[from_env_action(space.sample(), space) for _ in range(num_envs)] for _ in range(NUM_DRAWN)]
    return itertools.cycle(drawn)


def _main() -> None:
    leave_signals_to_parent()
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    if sys.platform == "linux":
        os.sched_setaffinity(0, {int(sys.argv[2])})
    env, num_envs = control.recv()
    stepping = Repeated("limit", bare_steps(env, num_envs, seed=int(sys.argv[2])))
    control.send(0.0)
    while True:
        try:
            seconds = control.recv()
        except EOFError:
            return
        control.send(stepping.run(seconds))


if __name__ == "__main__":
    _main()
