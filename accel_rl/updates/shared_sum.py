"""Sums over learners on one machine through shared memory, which is faster than Gloo over the loopback device.

If vectors are on a GPU, learners copy them to the shared memory, which is pinned, and back.
"""

import os
import secrets

import torch
import torch.distributed as dist
from torch import Tensor

from accel_rl.hardware.devices import pin, unpin
from accel_rl.hardware.shared_memory import Layout, SharedArrays


class SharedSum:
    """A sum over all learners of torch.distributed's default group, all of which must make the same calls.

    Each learner writes its vector, sums one slice over all learners, and reads the whole sum. Results are equal on all
    learners, bit for bit. Gloo keeps the learners in step, and so reports a learner that has died.
    """

    def __init__(self, memory: SharedArrays, device: torch.device):
        self._memory, self._rank, self._device = memory, dist.get_rank(), device
        self._pinned = pin(memory) if device.type == "cuda" else None
        self._vectors = torch.from_numpy(memory.arrays["vectors"])  # [learners, length]
        self._sum = torch.from_numpy(memory.arrays["sum"])  # [length]
        self._flag = torch.zeros(1)

    @classmethod
    def open(cls, vector: Tensor) -> "SharedSum | None":
        """Opens a sum for vectors of this vector's dtype and at most its length; all learners call it together.

        Returns None if the learners are not on one machine, or cannot open each other's memory."""
        rank, size, dtype = dist.get_rank(), dist.get_world_size(), str(vector.dtype).removeprefix("torch.")
        layout: Layout = {
            "vectors": ((size, len(vector)), dtype),
            "sum": ((len(vector),), dtype),
            "token": ((16,), "|u1"),
        }
        memory = SharedArrays(layout) if rank == 0 else None
        announcement = [(os.getpid(), memory.fd if memory else -1, secrets.token_bytes(16))]
        dist.broadcast_object_list(announcement)
        pid, fd, token = announcement[0]
        if memory:
            memory.arrays["token"][:] = list(token)
        dist.all_reduce(torch.zeros(1))  # the token is written now; barrier() might choose a GPU to wait with
        if not memory:
            memory = _open_memory(pid, fd, layout)
        is_shared = torch.tensor([bool(memory and memory.arrays["token"].tobytes() == token)], dtype=torch.int32)
        dist.all_reduce(is_shared, dist.ReduceOp.MIN)
        if memory:
            memory.close()  # the mapping stays valid without the descriptor
        return cls(memory, vector.device) if memory and bool(is_shared) else None

    def __call__(self, vector: Tensor) -> None:
        """Replaces vector [n] with its sum over all learners."""
        n, (num_learners, _) = len(vector), self._vectors.shape
        self._vectors[self._rank, :n].copy_(vector, non_blocking=True)
        self._wait_for_gpu()
        self._wait_for_all()
        span = slice(self._rank * n // num_learners, (self._rank + 1) * n // num_learners)
        total = torch.add(self._vectors[0, span], self._vectors[1, span], out=self._sum[span])
        for other in self._vectors[2:, span]:
            total.add_(other)
        self._wait_for_all()
        # No learner overwrites the sum before all are in the next call, where each waits for its GPU first.
        vector.copy_(self._sum[:n], non_blocking=True)

    def _wait_for_all(self) -> None:
        dist.all_reduce(self._flag)

    def _wait_for_gpu(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Unpins the memory, if a GPU uses it."""
        if self._pinned is not None:
            torch.cuda.synchronize(self._device)
            unpin(self._pinned)
            self._pinned = None


def _open_memory(pid: int, fd: int, layout: Layout) -> SharedArrays | None:
    """Opens another process's memory; returns None if it is on another machine, or access is denied."""
    try:
        own_fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except OSError:
        return None
    try:
        return SharedArrays(layout, own_fd)
    except (OSError, ValueError):  # a file of another machine's process with these numbers
        os.close(own_fd)
        return None
