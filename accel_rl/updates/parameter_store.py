"""Defines the central parameter store, which asynchronous learners of one machine share through mapped memory.

Stooke & Abbeel 2018, section 4.3: parameters and optimizer state lie in CPU memory, in a few chunks, each with its own
lock. A lock is a record lock of the operating system on one byte of the memory's file descriptor; it is released when
its process ends, for whatever reason. Locked tensors have two buffers and a version. A writer fills the buffer that is
not read and increments the version last, so a writer that dies has changed nothing.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.errors import UsageError
from accel_rl.hardware.shared_memory import Layout, SharedArrays
from accel_rl.updates.optimizers import State

NUM_CHUNKS = 3  # Stooke & Abbeel 2018's code, algos/pg/a2c.py
RETRY_S = 5e-5  # between two rounds if all chunks are locked

PARAMETERS = "parameters"  # name of a chunk's parameters, next to the names of the optimizer state


@dataclass(frozen=True)
class StoreSetup:
    """A description that lets another process attach to the store, by the inherited descriptor (pass_fds)."""

    layout: Layout
    fd: int
    num_chunks: int
    counters: tuple[str, ...]  # names in the optimizer state with one number per chunk
    locks: bool


class LockedTensors:
    """Tensors that are read and written together, under one lock.

    Only the process that holds the lock may read `current` or write `staging`. With one buffer instead of two, both are
    the same memory.
    """

    def __init__(self, buffers: Sequence[dict[str, Tensor]], version: "np.ndarray[Any, Any]", fd: int, byte: int):
        self._buffers, self._version = buffers, version
        self._fd, self._byte = fd, byte  # fd -1: no lock

    @property
    def version(self) -> int:
        """Number of calls of `publish`, by any process."""
        return int(self._version[0])

    @property
    def current(self) -> dict[str, Tensor]:
        """The tensors published last."""
        return self._buffers[self.version % len(self._buffers)]

    @property
    def staging(self) -> dict[str, Tensor]:
        """The tensors that `publish` makes `current`; until filled they hold old values or a dead writer's."""
        return self._buffers[(self.version + 1) % len(self._buffers)]

    def copy_to_staging(self) -> dict[str, Tensor]:
        """Copies the values of `current` to `staging`, and returns the latter."""
        current, staging = self.current, self.staging
        if staging is not current:
            for name, value in staging.items():
                value.copy_(current[name])
        return staging

    def publish(self) -> None:
        """Makes `staging` the `current` tensors."""
        self._version[0] += 1  # a single store of 8 bytes, hence atomic

    def acquire(self, blocking: bool = True) -> bool:
        """Acquires the lock; returns whether it was free, which is always true if blocking."""
        if self._fd < 0:
            return True
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB), 1, self._byte, os.SEEK_SET)
        except (BlockingIOError, PermissionError):  # which of the two depends on the system
            return False
        return True

    def release(self) -> None:
        """Releases the lock."""
        if self._fd >= 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._byte, os.SEEK_SET)


class CentralStore:
    """A store of parameters [P] and optimizer state in chunks, statistics of all learners, and a target network.

    parameters, optimizer_state: initial values, on the CPU: [P], and the result of `Optimizer.init` (vectors [P], and
        0-d counters, one copy per chunk). optimizer_state={}: each learner keeps its own state.
    locks: if False, chunks are changed in place without a lock, as in Mnih et al. 2016 (supplement, section 1), and
        versions may miss a count. Statistics and target always have a lock and two buffers.
    statistics: initial values of running statistics that all learners share.

        chunks       LockedTensors with "parameters" and the names of the state, for the slices `spans`
        statistics   LockedTensors with the names of the statistics
        target       LockedTensors with "parameters" [P] and "count" [1] int64, the number of its interval
        lock_wait_s  seconds that this process has waited for locks

    Record locks belong to a process, not to a thread or an object. A process loses all of them when it closes any
    descriptor of the memory. So it should open the store once, and close it when it needs no more locks.
    Raises UsageError if there are more chunks than parameters, or none.
    """

    def __init__(
        self,
        parameters: Tensor,
        optimizer_state: State,
        *,
        num_chunks: int = NUM_CHUNKS,
        locks: bool = True,
        statistics: dict[str, Tensor] | None = None,
    ):
        (size,) = parameters.shape
        if not 1 <= num_chunks <= size:
            raise UsageError(f"num_chunks={num_chunks} must be at least 1 and at most {size}, the number of parameters")
        statistics = statistics or {}
        chunked = {f"chunk/{PARAMETERS}": parameters}
        for name, value in optimizer_state.items():
            chunked[f"chunk/{name}"] = value if value.dim() else value.expand(num_chunks)
        counters = tuple(name for name, value in optimizer_state.items() if not value.dim())
        whole = {f"statistics/{name}": value for name, value in statistics.items()}
        whole |= {f"target/{PARAMETERS}": parameters, "target/count": torch.zeros(1, dtype=torch.int64)}
        layout = {name: _layout(value, 2 if locks else 1) for name, value in chunked.items()}
        layout |= {name: _layout(value, 2) for name, value in whole.items()}
        layout["versions"] = ((num_chunks + 2,), "int64")
        memory = SharedArrays(layout)
        self._open(memory, StoreSetup(layout, memory.fd, num_chunks, counters, locks))
        for name, value in (chunked | whole).items():
            self._tensors[name][0].copy_(value)

    @classmethod
    def attach(cls, setup: StoreSetup) -> "CentralStore":
        """Opens the same store in a process that inherited its descriptor."""
        store = cls.__new__(cls)
        store._open(SharedArrays(setup.layout, setup.fd), setup)
        return store

    def _open(self, memory: SharedArrays, setup: StoreSetup) -> None:
        self.setup, self.memory, self.lock_wait_s = setup, memory, 0.0
        self._tensors = {name: torch.from_numpy(array) for name, array in memory.arrays.items()}
        versions = memory.arrays["versions"]
        num_chunks, size = setup.num_chunks, self._tensors[f"chunk/{PARAMETERS}"].shape[1]
        bounds = [chunk * size // num_chunks for chunk in range(num_chunks + 1)]
        self.spans = [slice(*pair) for pair in pairwise(bounds)]
        fields = [self._chunk_fields(chunk, span) for chunk, span in enumerate(self.spans)]
        fields += [self._fields("statistics/"), self._fields("target/")]
        # A lock is on a byte of the memory itself; the contents of that byte do not matter.
        fds = [setup.fd if setup.locks else -1] * num_chunks + [setup.fd, setup.fd]
        locked = [
            LockedTensors(_buffers(fields[i]), versions[i : i + 1], fds[i], byte=i) for i in range(num_chunks + 2)
        ]
        self.chunks, self.statistics, self.target = locked[:num_chunks], locked[-2], locked[-1]

    def _fields(self, prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): tensor for n, tensor in self._tensors.items() if n.startswith(prefix)}

    def _chunk_fields(self, chunk: int, span: slice) -> dict[str, Tensor]:
        fields, counters = self._fields("chunk/"), self.setup.counters
        return {name: tensor[:, chunk if name in counters else span] for name, tensor in fields.items()}

    @contextmanager
    def locked(self, tensors: LockedTensors) -> Iterator[LockedTensors]:
        """Waits for the lock of these tensors, and holds it within the `with` block."""
        if not tensors.acquire(blocking=False):
            start = time.perf_counter()
            tensors.acquire()
            self.lock_wait_s += time.perf_counter() - start
        try:
            yield tensors
        finally:
            tensors.release()

    def for_each_chunk(self, visit: Callable[[int], None]) -> None:
        """Calls visit(chunk) for each chunk under its lock, in the order in which chunks become free."""
        remaining = list(range(len(self.chunks)))
        while remaining:
            chunk = next((chunk for chunk in remaining if self.chunks[chunk].acquire(blocking=False)), None)
            if chunk is None:
                start = time.perf_counter()
                time.sleep(RETRY_S)
                self.lock_wait_s += time.perf_counter() - start
                continue
            try:
                visit(chunk)
            finally:
                self.chunks[chunk].release()
            remaining.remove(chunk)

    def read(self) -> State:
        """Returns copies of the parameters [P] and the optimizer state, as whole vectors.

        Each chunk is consistent in itself. A counter is the highest of all chunks."""
        states: list[State] = [{} for _ in self.chunks]

        def visit(chunk: int) -> None:
            states[chunk] = {name: value.clone() for name, value in self.chunks[chunk].current.items()}

        self.for_each_chunk(visit)
        return join(states)

    def write(self, values: State) -> None:
        """Sets parameters and state, in the format of `read`."""

        def visit(chunk: int) -> None:
            for name, staging in self.chunks[chunk].staging.items():
                staging.copy_(values[name][self.spans[chunk]] if values[name].dim() else values[name])
            self.chunks[chunk].publish()

        self.for_each_chunk(visit)

    def close(self) -> None:
        """Closes the descriptor, which releases all locks of this process."""
        self.memory.close()


def join(states: Sequence[State]) -> State:
    """Joins the chunks' tensors: concatenates vectors, and takes the maximum of each 0-d counter."""
    return {
        name: torch.cat([state[name] for state in states])
        if value.dim()
        else torch.stack([state[name] for state in states]).amax(0)
        for name, value in states[0].items()
    }


def _layout(value: Tensor, num_buffers: int) -> tuple[tuple[int, ...], str]:
    return (num_buffers, *value.shape), str(value.dtype).removeprefix("torch.")


def _buffers(fields: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Splits tensors [num_buffers, ...] by name into one dict for each buffer; without tensors, into one empty dict."""
    num_buffers = min((len(tensor) for tensor in fields.values()), default=1)
    return [{name: tensor[buffer] for name, tensor in fields.items()} for buffer in range(num_buffers)]
