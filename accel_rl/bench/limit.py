"""Measures the simulation limit: bare processes that only simulate. `python -m accel_rl.bench.limit` runs one.

Like the sampler's worker processes, they import no torch.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from accel_rl.bench.bare import bare_steps
from accel_rl.bench.timing import Repeated, Shares
from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError
from accel_rl.hardware.topology import available_cpus, physical_cores
from accel_rl.processes.child import leave_signals_to_parent
from accel_rl.processes.spawning import spawn_connected


class SimulationLimit:
    """A contestant that only steps environments, with random actions, in bare processes.

    It has one process for each of the given logical CPUs (None: one per core) that gets environments. The simulator is
    the sampler's, with emulation, frame processing and resets (bare.py), but processes wait for no other.
    """

    def __init__(
        self,
        env: EnvConfig,
        num_envs: int,
        cpus: Sequence[int] | None,
        name: str,
        shares: Shares | None = None,
    ):
        self.name, self.shares = name, shares or {}
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
        """Returns each process's rate over this many seconds."""
        try:
            for _, control in self._workers if seconds else ():
                control.send(seconds)
            return [float(control.recv()) for _, control in self._workers]
        except (EOFError, ConnectionError):
            self.close()
            raise RunError("a process of the simulation limit has died; its traceback stands above") from None

    def close(self) -> None:
        for popen, control in self._workers:
            control.close()
            popen.wait()


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
