"""Captures work on a GPU as a CUDA graph, and leaves everything as it was if that fails."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

OUT_OF_MEMORY = (
    "out of memory",  # CUDA's allocator, the instantiation of graphs, NCCL
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cudaErrorMemoryAllocation",
)


searches_convolutions = True  # whether `fixed_shapes` has an effect


@contextlib.contextmanager
def fixed_shapes() -> Iterator[None]:
    """Makes cuDNN search for the fastest convolutions of each shape that is new to it in this block.

    For work that is repeated with the same shapes: a search takes longer than many convolutions. Operations that have
    to be deterministic are not searched for: what is found differs from run to run."""
    cudnn = torch.backends.cudnn
    is_free = not (torch.are_deterministic_algorithms_enabled() or cudnn.deterministic)
    before, cudnn.benchmark = cudnn.benchmark, searches_convolutions and is_free
    try:
        yield
    finally:
        cudnn.benchmark = before


class CaptureError(RuntimeError):
    """Work that a CUDA graph cannot hold: it reads a value, or copies from memory that is not pinned."""


def capture(work: Callable[[], object], stream: "torch.cuda.Stream") -> Any:
    """Calls work() once, on this stream, and returns the CUDA graph that repeats what it enqueues.

    work must have run before, on this stream: libraries allocate what they need at their first call. Raises
    CaptureError if it cannot be captured; being out of memory is raised as it is. In both cases the current stream is
    what it was. (torch.cuda.graph would leave the capture's stream current.)
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.cuda.synchronize(stream.device)
    torch.cuda.empty_cache()  # a graph's memory is its own: make room for it
    try:
        with torch.cuda.stream(stream):
            # Only this thread's calls count: another one may pin memory or ask for events meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that the capture has failed is known
                    graph.capture_end()
                raise
            graph.capture_end()
    except BaseException as error:
        _end_allocating(pool, stream)
        _end_capturing(stream)
        if not isinstance(error, RuntimeError) or is_out_of_memory(error):
            raise
        raise CaptureError(str(error)) from error
    return graph


def _end_allocating(pool: Any, stream: "torch.cuda.Stream") -> None:
    """Ends the allocations of a failed capture from its pool.

    Releases of PyTorch before 2.13 forget that: no cache could be emptied any more, so nothing captured. Newer ones
    have ended them already, and say so by an error. (pytorch/pytorch#180395)"""
    if end := getattr(torch._C, "_cuda_endAllocateToPool", None):
        with contextlib.suppress(RuntimeError):
            end(stream.device.index, pool)
            torch._C._cuda_releasePool(stream.device.index, pool)


def _end_capturing(stream: "torch.cuda.Stream") -> None:
    """Makes PyTorch's generators forget a failed capture, by one that succeeds.

    `capture_end` tells generators only if nothing has failed. Else the next random numbers outside of a graph, such as
    dropout's, are reported to raise "Offset increment outside graph capture encountered unexpectedly"."""
    graph = torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError), torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        torch.zeros(1, device=stream.device)
        graph.capture_end()


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether a GPU was out of memory: PyTorch has an exception for its own allocator only."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
    )
