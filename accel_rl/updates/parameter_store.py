"""The central parameter store: what asynchronous learners of one machine share, in memory that all of them map.

Stooke & Abbeel 2018, section 4.3: parameters and the update rule's state lie in CPU memory, in a few chunks, each with
a lock of its own. A lock is a record lock of the operating system on one byte of the memory's descriptor: it goes with
the process that holds it, however that ends. What is locked has two buffers and a version; a writer fills the buffer
that nobody reads and counts the version up as its last act, so that one who dies before has written nothing.
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
RETRY_S = 5e-5  # between two rounds over chunks that are all taken

PARAMETERS = "parameters"  # the field of a chunk beside those of the rule's state


@dataclass(frozen=True)
class StoreSetup:
    """What another process needs to open the store, together with the descriptor itself (subprocess: pass_fds)."""

    layout: Layout
    fd: int
    num_chunks: int
    counters: tuple[str, ...]  # of the rule's state: one number for each chunk
    locks: bool


class Part:
    """Tensors that are read and written together, under one lock.

    Only who holds the lock looks at `current` or touches `staging`. With one buffer instead of two both are the same
    memory.
    """

    def __init__(self, buffers: Sequence[dict[str, Tensor]], version: "np.ndarray[Any, Any]", fd: int, byte: int):
        self._buffers, self._version = buffers, version
        self._fd, self._byte = fd, byte  # fd -1: there is no lock

    @property
    def version(self) -> int:
        """How often this has been published."""
        return int(self._version[0])

    @property
    def current(self) -> dict[str, Tensor]:
        """What was published last."""
        return self._buffers[self.version % len(self._buffers)]

    @property
    def staging(self) -> dict[str, Tensor]:
        """What `publish` will make `current`; until it is filled its values are old ones, or those of a dead writer."""
        return self._buffers[(self.version + 1) % len(self._buffers)]

    def copy_to_staging(self) -> dict[str, Tensor]:
        """The staging with the values of `current`."""
        current, staging = self.current, self.staging
        if staging is not current:
            for name, value in staging.items():
                value.copy_(current[name])
        return staging

    def publish(self) -> None:
        self._version[0] += 1  # one store of 8 bytes: there is no half of it

    def take(self, wait: bool) -> bool:
        """Takes the lock; without waiting, returns whether it was free."""
        if self._fd < 0:
            return True
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, self._byte, os.SEEK_SET)
        except (BlockingIOError, PermissionError):  # which of them is up to the system
            return False
        return True

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._byte, os.SEEK_SET)


class CentralStore:
    """Parameters [P] and the rule's state, cut into chunks; statistics that all learners share; a target network.

    parameters: [P] on the CPU; they and rule_state (`rule.init`: vectors [P] and 0-d counters, of which each chunk gets
        one) are the initial values. rule_state={}: each learner keeps its own.
    locks: False as Mnih et al. 2016 ran (supplement, section 1): chunks are changed in place without a lock, versions
        may miss a count. Statistics and target always have a lock and two buffers.
    statistics: initial values of buffers that `CentralUpdate.exclusive` shares.

        chunks      Part with "parameters" and the state's names, of the slices `spans`
        statistics  Part with their names
        target      Part with "parameters" [P] and "count" [1] int64, the number of intervals it belongs to
        waited_s    seconds this process has spent waiting for locks

    Record locks are a process's, not a thread's or an object's, and all are lost when the process closes any descriptor
    of the memory: a process should open the store once, and close it when it needs no lock any more.
    """

    def __init__(
        self,
        parameters: Tensor,
        rule_state: State,
        *,
        num_chunks: int = NUM_CHUNKS,
        locks: bool = True,
        statistics: dict[str, Tensor] | None = None,
    ):
        (size,) = parameters.shape
        if not 1 <= num_chunks <= size:
            raise UsageError(f"num_chunks={num_chunks} must be at least 1 and at most the {size} parameters")
        statistics = statistics or {}
        initial = {f"chunk/{PARAMETERS}": parameters}
        for name, value in rule_state.items():
            initial[f"chunk/{name}"] = value if value.dim() else value.expand(num_chunks)
        counters = tuple(name for name, value in rule_state.items() if not value.dim())
        twice = {f"statistics/{name}": value for name, value in statistics.items()}
        twice |= {f"target/{PARAMETERS}": parameters, "target/count": torch.zeros(1, dtype=torch.int64)}
        layout = {name: _layout(value, 2 if locks else 1) for name, value in initial.items()}
        layout |= {name: _layout(value, 2) for name, value in twice.items()}
        layout["versions"] = ((num_chunks + 2,), "int64")
        memory = SharedArrays(layout)
        self._open(memory, StoreSetup(layout, memory.fd, num_chunks, counters, locks))
        for name, value in (initial | twice).items():
            self._tensors[name][0].copy_(value)

    @classmethod
    def attach(cls, setup: StoreSetup) -> "CentralStore":
        """The same store in a process that has inherited its descriptor."""
        store = cls.__new__(cls)
        store._open(SharedArrays(setup.layout, setup.fd), setup)
        return store

    def _open(self, memory: SharedArrays, setup: StoreSetup) -> None:
        self.setup, self.memory, self.waited_s = setup, memory, 0.0
        self._tensors = {name: torch.from_numpy(array) for name, array in memory.arrays.items()}
        versions = memory.arrays["versions"]
        num_chunks, size = setup.num_chunks, self._tensors[f"chunk/{PARAMETERS}"].shape[1]
        bounds = [chunk * size // num_chunks for chunk in range(num_chunks + 1)]
        self.spans = [slice(*pair) for pair in pairwise(bounds)]
        fields = [self._chunk_fields(chunk, span) for chunk, span in enumerate(self.spans)]
        fields += [self._fields("statistics/"), self._fields("target/")]
        # The byte that stands for a lock is one of the memory's own, whatever lies there.
        fds = [setup.fd if setup.locks else -1] * num_chunks + [setup.fd, setup.fd]
        parts = [
            Part(_buffers(fields[part]), versions[part : part + 1], fds[part], part) for part in range(num_chunks + 2)
        ]
        self.chunks, self.statistics, self.target = parts[:num_chunks], parts[-2], parts[-1]

    def _fields(self, prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): tensor for n, tensor in self._tensors.items() if n.startswith(prefix)}

    def _chunk_fields(self, chunk: int, span: slice) -> dict[str, Tensor]:
        fields, counters = self._fields("chunk/"), self.setup.counters
        return {name: tensor[:, chunk if name in counters else span] for name, tensor in fields.items()}

    @contextmanager
    def holding(self, part: Part) -> Iterator[Part]:
        """The part, locked; waits for it."""
        if not part.take(wait=False):
            start = time.perf_counter()
            part.take(wait=True)
            self.waited_s += time.perf_counter() - start
        try:
            yield part
        finally:
            part.release()

    def each_chunk(self, visit: Callable[[int], None]) -> None:
        """Calls visit(chunk) for each chunk while it is locked, whichever is free first."""
        left = list(range(len(self.chunks)))
        while left:
            chunk = next((chunk for chunk in left if self.chunks[chunk].take(wait=False)), None)
            if chunk is None:
                start = time.perf_counter()
                time.sleep(RETRY_S)
                self.waited_s += time.perf_counter() - start
                continue
            try:
                visit(chunk)
            finally:
                self.chunks[chunk].release()
            left.remove(chunk)

    def read(self) -> State:
        """Copies of the parameters [P] and the rule's state, whole vectors; each chunk is of one moment.

        A counter is that of the chunk which has counted furthest."""
        found: list[State] = [{} for _ in self.chunks]

        def visit(chunk: int) -> None:
            found[chunk] = {name: value.clone() for name, value in self.chunks[chunk].current.items()}

        self.each_chunk(visit)
        return join(found)

    def write(self, values: State) -> None:
        """Takes over parameters and state as `read` returns them."""

        def visit(chunk: int) -> None:
            for name, staging in self.chunks[chunk].staging.items():
                staging.copy_(values[name][self.spans[chunk]] if values[name].dim() else values[name])
            self.chunks[chunk].publish()

        self.each_chunk(visit)

    def close(self) -> None:
        """Gives the descriptor back, and with it all locks of this process."""
        self.memory.close()


def join(states: Sequence[State]) -> State:
    """The chunks' tensors as whole ones: vectors one after the other, of a 0-d counter the largest."""
    return {
        name: torch.cat([state[name] for state in states])
        if value.dim()
        else torch.stack([state[name] for state in states]).amax(0)
        for name, value in states[0].items()
    }


def _layout(value: Tensor, num_buffers: int) -> tuple[tuple[int, ...], str]:
    return (num_buffers, *value.shape), str(value.dtype).removeprefix("torch.")


def _buffers(fields: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Tensors [buffers, ...] by name as one dict for each buffer. (None at all: nothing to choose from.)"""
    num_buffers = min((len(tensor) for tensor in fields.values()), default=1)
    return [{name: tensor[buffer] for name, tensor in fields.items()} for buffer in range(num_buffers)]
