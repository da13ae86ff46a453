"""Sums over learners on one machine, through memory that they share: quicker than Gloo through the loopback device."""

import os
import secrets

import torch
import torch.distributed as dist
from torch import Tensor

from accel_rl.hardware.shared_memory import Layout, SharedArrays


class SharedSum:
    """The sum of a vector over all learners of torch.distributed's default group; all make the same calls.

    Each writes its vector, adds up its part of all of them, and reads the whole. The result is the same everywhere, bit
    for bit. A learner that is gone is noticed by the others, as with Gloo, which keeps them in step here.
    """

    def __init__(self, memory: SharedArrays):
        self._memory, self._rank = memory, dist.get_rank()
        self._vectors = torch.from_numpy(memory.arrays["vectors"])  # [learners, length]
        self._sum = torch.from_numpy(memory.arrays["sum"])  # [length]
        self._flag = torch.zeros(1)

    @classmethod
    def open(cls, vector: Tensor) -> "SharedSum | None":
        """For vectors like this one [length] or shorter. None if the learners do not share a machine, or its system
        does not let them share memory."""
        rank, size, dtype = dist.get_rank(), dist.get_world_size(), str(vector.dtype).removeprefix("torch.")
        layout: Layout = {
            "vectors": ((size, len(vector)), dtype),
            "sum": ((len(vector),), dtype),
            "token": ((16,), "|u1"),
        }
        memory = SharedArrays(layout) if rank == 0 else None
        told = [(os.getpid(), memory.fd if memory else -1, secrets.token_bytes(16))]
        dist.broadcast_object_list(told)
        pid, fd, token = told[0]
        if memory:
            memory.arrays["token"][:] = list(token)
        dist.barrier()
        if not memory:
            memory = _of_process(pid, fd, layout)
        have = torch.tensor([bool(memory and memory.arrays["token"].tobytes() == token)], dtype=torch.int32)
        dist.all_reduce(have, dist.ReduceOp.MIN)
        if memory:
            memory.close()  # it is mapped, and needs no descriptor any more
        return cls(memory) if memory and bool(have) else None

    def __call__(self, vector: Tensor) -> None:
        """In place; vector [n]."""
        n, (size, _) = len(vector), self._vectors.shape
        self._vectors[self._rank, :n].copy_(vector)
        self._wait_for_all()
        mine = slice(self._rank * n // size, (self._rank + 1) * n // size)
        total = torch.add(self._vectors[0, mine], self._vectors[1, mine], out=self._sum[mine])
        for other in self._vectors[2:, mine]:
            total.add_(other)
        self._wait_for_all()
        vector.copy_(self._sum[:n])  # nobody writes there before all have come to the next call

    def _wait_for_all(self) -> None:
        dist.all_reduce(self._flag)


def _of_process(pid: int, fd: int, layout: Layout) -> SharedArrays | None:
    """Another process's memory; None if it is on another machine, or out of reach."""
    try:
        return SharedArrays(layout, os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR))
    except (OSError, ValueError):
        return None
