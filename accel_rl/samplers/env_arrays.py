"""Assigns environments to workers, and holds the shared arrays that they write. Imports no torch."""

import numpy as np

from accel_rl.envs.batches.env_batch import select_envs
from accel_rl.envs.spec import Array
from accel_rl.hardware.shared_memory import Layout, SharedArrays

NUM_GROUPS = 2

EnvRange = tuple[int, int]
"""First environment and number of environments of one worker in one group."""


class EnvArrays:
    """The shared arrays of num_envs environments, and the assignment of environments to workers.

    window: rows of each array before the rollout's; only the learner uses them. Pickled for a worker, it refers to the
    same memory."""

    def __init__(self, layout: Layout, num_workers: int, window: int = 0):
        self.window = window
        self.memory = SharedArrays(layout)
        self.num_envs = self.arrays["reward"].shape[1]
        self.horizon = len(self.arrays["reward"]) - window
        self.ranges = assign_envs(self.num_envs, num_workers)
        # serves [num_workers, NUM_GROUPS] bool: whether the worker has environments of that group.
        self.serves = np.array([[num > 0 for _, num in ranges] for ranges in self.ranges])

    @property
    def arrays(self) -> dict[str, Array]:
        return self.memory.arrays  # an attribute would be pickled as a copy

    def members(self) -> list[list[int]]:
        """Returns the workers of each group."""
        return [np.flatnonzero(self.serves[:, group]).tolist() for group in range(NUM_GROUPS)]

    def envs_of(self, worker: int) -> list[int]:
        """Returns the worker's environments, by index."""
        return [env for first, num in self.ranges[worker] for env in range(first, first + num)]

    def arrays_of(self, worker: int, group: int) -> dict[str, Array]:
        """Returns the columns of the worker's environments in a group, without the window."""
        first, num = self.ranges[worker][group]
        return select_envs(self.arrays, slice(first, first + num), self.window)


def assign_envs(num_envs: int, num_workers: int) -> list[tuple[EnvRange, EnvRange]]:
    """Returns each worker's environments in each group.

    A worker has equally many in both groups, so it always has something to do. If the environments divide evenly over
    the workers, but not over both groups of each, the first half of the workers serves group 0 and the second half
    group 1. Otherwise numbers differ by one: the first workers have more of group 0, the last ones of group 1."""
    half = num_envs // NUM_GROUPS
    if half % num_workers and num_envs % num_workers == 0 and num_workers % NUM_GROUPS == 0:
        k, in_group_0 = num_envs // num_workers, num_workers // NUM_GROUPS
        return [((w * k, k), (half, 0)) if w < in_group_0 else ((0, 0), (w * k, k)) for w in range(num_workers)]
    k, rest = divmod(half, num_workers)
    numbers = [(k + (w < rest), k + (w >= num_workers - rest)) for w in range(num_workers)]
    found, firsts = [], [0, half]
    for in_both in numbers:
        found.append(((firsts[0], in_both[0]), (firsts[1], in_both[1])))
        firsts = [first + num for first, num in zip(firsts, in_both, strict=True)]
    return found
