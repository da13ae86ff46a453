"""CUDA graphs: a tape of the work that was enqueued during the capture, with the addresses of that time."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any

from torch import Tensor

from tests.fake_cuda.machine import machine
from tests.fake_cuda.memory import spoil
from tests.fake_cuda.streams import Queue, Work, current_queue, refuse_in_capture, run_some

_numbers = itertools.count(1)


class Pool:
    """Memory that the graphs of one pool share. A graph may overwrite what an earlier one has freed."""

    def __init__(self) -> None:
        self.id = (0, next(_numbers))
        self.freed: list[Tensor] = []


_pools: dict[tuple[int, int], Pool] = {}


def graph_pool_handle() -> tuple[int, int]:
    pool = Pool()
    _pools[pool.id] = pool
    return pool.id


def empty_cache() -> None:
    if machine().allocating_pools:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


def end_allocate_to_pool(gpu: int, pool: tuple[int, int]) -> None:
    if pool not in machine().allocating_pools:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    machine().allocating_pools.remove(pool)


def release_pool(gpu: int, pool: tuple[int, int]) -> None:
    del _pools[pool]


class Capture:
    """A capture in progress."""

    def __init__(self, queue: Queue, pool: Pool, generators: list[Any], thread: int | None):
        self.queue, self.pool, self.generators = queue, pool, generators
        self.thread = thread  # the only thread whose calls are captured; None: all threads
        self.tape: list[Work] = [partial(spoil, memory) for memory in pool.freed]
        pool.freed.clear()
        self.draws: list[Any] = []  # draws of random numbers, in order
        self.is_valid = True


class CUDAGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False):
        if keep_graph:
            raise NotImplementedError("keep_graph")
        self._capture: Capture | None = None
        self._generators: list[Any] = []
        self._pool: Pool | None = None
        self._tape: list[Work] | None = None
        self._gpu: int | None = None  # a replay takes its current stream, as in PyTorch

    def register_generator_state(self, generator: Any) -> None:
        self._generators.append(generator)

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        now, queue = machine(), current_queue()
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(f"unknown capture error mode {capture_error_mode}")
        if queue is now.gpus[queue.gpu].default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream")
        if now.capture is not None:
            raise RuntimeError("CUDA error: a capture is under way already")
        self._pool = _pools.setdefault(pool, Pool()) if pool else Pool()
        _pools[self._pool.id] = self._pool
        thread = threading.get_ident() if capture_error_mode == "thread_local" else None
        self._capture = now.capture = queue.capture = Capture(queue, self._pool, self._generators, thread)

    def capture_end(self) -> None:
        now, capture = machine(), self._capture
        if capture is None:
            raise RuntimeError("capture_end without capture_begin")
        if current_queue() is not capture.queue:
            raise RuntimeError("Capture must end on the same stream it began on.")
        now.capture = capture.queue.capture = self._capture = None
        if not capture.is_valid:
            now.allocating_pools.add(capture.pool.id)  # as in releases of PyTorch before 2.13
            now.generators_are_capturing = True
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        now.generators_are_capturing = False
        self._tape, self._draws, self._gpu = capture.tape, capture.draws, capture.queue.gpu

    def replay(self) -> None:
        """Enqueues the tape. Random numbers are drawn now, as a launch fixes the generator's offset."""
        refuse_in_capture("launch of a graph")
        if self._tape is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        machine().counts.graphs += 1
        tape = self._tape
        drawn = [draw.draw() for draw in self._draws]

        def run() -> None:
            for draw, values in zip(self._draws, drawn, strict=True):
                draw.values = values
            for work in tape:
                work()

        current_queue(self._gpu).push(run)
        run_some()

    def pool(self) -> tuple[int, int]:
        assert self._pool
        return self._pool.id

    def reset(self) -> None:
        self._tape = None

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"CUDAGraph.{name}")
