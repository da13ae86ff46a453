"""Memory of the GPUs, which is spoiled as soon as it is freed, and page-locked memory of the host."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.fake_cuda.machine import machine
from tests.fake_cuda.streams import Queue, current_queue

if TYPE_CHECKING:
    from tests.fake_cuda.graphs import Pool

SPOILT_INTEGER = 113


class Block:
    """An allocation, which is freed with the last tensor in it and then spoiled, in the order of its stream.

    PyTorch reuses freed memory for the next allocation on the same stream, so work that still uses it on another
    stream, or in an earlier graph, finds other values. Memory of a graph's pool is reused only in the same pool."""

    def __init__(self, memory: Tensor, gpu: int):
        self.memory, self.gpu = memory, machine().gpus[gpu]
        self.queue, self.users = current_queue(gpu), set[Queue]()
        self.pool: Pool | None = self.queue.capture.pool if self.queue.capture else None
        self._machine, self._bytes = machine(), memory.untyped_storage().nbytes()
        self.gpu.allocated += self._bytes

    def __del__(self) -> None:
        with suppress(AttributeError, TypeError, ImportError):  # the interpreter may be shutting down
            self.gpu.allocated -= self._bytes
            if self._machine is not machine() or not self._bytes:
                return
            memory = self.memory
            if self.pool is not None and self.queue.capture is None:
                self.pool.freed.append(memory)
                return
            for user in self.users:  # record_stream: these finish before the memory is reused
                position = user.num_pushed
                self.queue.push(partial(user.run_to, position))
            self.queue.push(lambda: spoil(memory))


def spoil(memory: Tensor) -> None:
    """Overwrites freed or new memory with conspicuous values."""
    if memory.numel():
        dtype = memory.dtype
        memory.fill_(math.nan if dtype.is_floating_point else True if dtype == torch.bool else SPOILT_INTEGER)


def allocate(shape: Iterable[int], stride: Iterable[int], dtype: torch.dtype) -> Tensor:
    """Returns memory that holds leftovers of an earlier use."""
    with torch.inference_mode(False), torch.no_grad():
        memory = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype)
        spoil(memory)
    return memory


# ---- the host ----


def is_pinned(tensor: Tensor) -> bool:
    address = tensor.data_ptr()
    return any(start <= address < start + size for start, size in machine().pinned.items())


def pin(tensor: Tensor, device: Any = None) -> Tensor:
    """Replaces torch.Tensor.pin_memory: returns a page-locked copy."""
    return tensor if is_pinned(tensor) else lock(tensor.clone(memory_format=torch.contiguous_format))


def lock(tensor: Tensor) -> Tensor:
    """Locks the pages of a new tensor for as long as it exists."""
    now, address = machine(), tensor.data_ptr()
    now.pinned[address] = max(1, tensor.nbytes)
    weakref.finalize(tensor.untyped_storage(), now.pinned.pop, address, None)
    return tensor


class Cudart:
    """torch.cuda.cudart()."""

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int) -> int:  # noqa: N802
        now = machine()
        if now.refuses_to_pin:
            now.last_error = "operation not supported"
            return 801
        if address in now.registered:
            now.last_error = "part or all of the requested memory range is already mapped"
            return 712
        now.registered.add(address)
        now.pinned[address] = size
        return 0

    @staticmethod
    def cudaHostUnregister(address: int) -> int:  # noqa: N802
        now = machine()
        if address not in now.registered:
            now.last_error = "pointer does not correspond to a registered memory region"
            return 713
        now.registered.remove(address)
        del now.pinned[address]
        return 0

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"cudart.{name}")
