"""Records workers' progress and last signs of life in shared memory, which outlives them.

Imports no torch.
"""

import time

import numpy as np

from accel_rl.envs.spec import Array
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.processes.pool import SignsOfLife
from accel_rl.samplers.env_arrays import NUM_GROUPS

# Columns of a worker's row. ROWS_ANNOUNCED is group 0's; group 1's follows. A worker only counts up.
CURRENT_ENV, HEARTBEAT, WAITED_NS, ROWS_ANNOUNCED = range(4)


class WorkerStatus:
    """The server's view of all workers' reports."""

    def __init__(self, num_workers: int):
        self.memory = SharedArrays({"status": ((num_workers, ROWS_ANNOUNCED + NUM_GROUPS), "<i8")})
        self._status = self.memory.arrays["status"]
        self._rows_before = np.zeros((num_workers, NUM_GROUPS), np.int64)  # announced before this rollout
        self._signs = SignsOfLife(self._status[:, HEARTBEAT])

    def current_env(self, worker: int) -> int:
        """Returns the environment that the worker stepped, reset or built last."""
        return int(self._status[worker, CURRENT_ENV])

    def rows_announced(self, worker: int, group: int) -> int:
        """Returns how many rows the worker has counted in this rollout."""
        return int(self._status[worker, ROWS_ANNOUNCED + group] - self._rows_before[worker, group])

    def finish_rollout(self, num_rows: Array) -> None:
        """Adds the rows of an ended rollout, num_rows [num_workers, NUM_GROUPS], to those of earlier rollouts."""
        self._rows_before += num_rows

    def reset(self, worker: int) -> None:
        """Prepares, between two rollouts, for a new process in the worker's place."""
        self._status[worker, ROWS_ANNOUNCED:] = self._rows_before[worker]
        self._signs.restart(worker)

    def restart_clocks(self) -> None:
        """Restarts the time limits of all workers."""
        self._signs.restart()

    def find_hung(self, late: list[int], timeout_s: float, woken_at: Array | None = None) -> list[int]:
        """Returns those of the late workers that have shown no sign of life for timeout_s, nor received work.

        woken_at [num_workers]: when each last received work, by the monotonic clock; None: long ago."""
        self._signs.look()
        silent = [worker for worker in late if self._signs.silent_s(worker) > timeout_s]
        return [worker for worker in silent if woken_at is None or woken_at[worker] < time.monotonic() - timeout_s]

    @property
    def waited_s(self) -> float:
        """Seconds that workers have waited for actions in rollouts so far, on average."""
        return float(self._status[:, WAITED_NS].mean()) / 1e9
