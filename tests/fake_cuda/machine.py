"""The state of the fake machine: its GPUs, the order in which they work, and counts of their work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fake_cuda.graphs import Capture
    from tests.fake_cuda.streams import Queue

CAPACITY = 16 * 2**30  # bytes of each GPU


@dataclass
class Counts:
    """Counts of the work that a program has given to the GPUs.

    kernels: launches outside of graphs, by operation; captured: the same while capturing. graphs: launches of graphs.
    syncs: waits of the host, by reason. up, down: copies over the bus, by kind; up_bytes, down_bytes: their sizes.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    captured: Counter[str] = field(default_factory=Counter)
    graphs: int = 0
    syncs: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def launches(self) -> int:
        """Launches of kernels outside of graphs."""
        return self.kernels.total()

    def copy(self) -> Counts:
        return self.since(Counts())

    def since(self, before: Counts) -> Counts:
        """Returns the counts since a copy was made."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        return Counts(**values)


class Gpu:
    """One GPU: its default stream's queue, the current one, and its memory."""

    def __init__(self, index: int, default: Queue):
        self.index, self.default, self.current = index, default, default
        self.allocated = 0  # bytes


class Machine:
    """The state of the fake `torch.cuda`; there is one at a time, `MACHINE.now`."""

    def __init__(self, num_gpus: int, seed: int | None):
        self.num_gpus = num_gpus
        self.order = random.Random(seed) if seed is not None else None  # None: as late as is legal
        self.counts = Counts()
        self.gpus: list[Gpu] = []
        self.device = 0  # the current one
        self.queues: list[Queue] = []
        self.capture: Capture | None = None
        self.pinned: dict[int, int] = {}  # address -> bytes, of page-locked host memory
        self.registered: set[int] = set()  # the addresses among them that cudaHostRegister has pinned
        self.num_collectives = 0  # NCCL collectives that are enqueued but have not run
        self.refuses_to_pin = False
        self.allocating_pools: set[tuple[int, int]] = set()  # pools of captures that have failed
        self.generators_are_capturing = False  # after a capture that has failed
        self.last_error: str | None = None  # raised by the next launch, unless cleared
        self.sync_debug_mode = 0  # 1: warn of implicit waits, 2: raise
        self.capability = (8, 0)
        self.is_initialized = False

    @property
    def gpu(self) -> Gpu:
        return self.gpus[self.device]


class _Now:
    now: Machine


MACHINE = _Now()


def machine() -> Machine:
    return MACHINE.now


@contextmanager
def counting() -> Iterator[Counts]:
    """Yields counts of what happens within the block; they are filled when the block ends."""
    before, found = machine().counts.copy(), Counts()
    yield found
    for name, value in vars(machine().counts.since(before)).items():
        setattr(found, name, value)
