"""Captures work on a GPU as a CUDA graph, and restores the previous state if that fails."""

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


@contextlib.contextmanager
def fixed_shapes() -> Iterator[None]:
    """Makes cuDNN search for the fastest convolution of each new shape in this block.

    Use it for work that repeats with the same shapes: a search takes longer than many convolutions. Has no effect if
    operations must be deterministic, since results of the search differ from run to run."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = not (torch.are_deterministic_algorithms_enabled() or cudnn.deterministic)
    try:
        yield
    finally:
        cudnn.benchmark = before


class CaptureError(RuntimeError):
    """Raised for work that cannot be captured: it reads a value back, or copies from unpinned memory."""


def capture(work: Callable[[], object], stream: "torch.cuda.Stream") -> Any:
    """Calls work() once, on this stream, and returns the CUDA graph that repeats what it enqueues.

    work must have run on this stream before, since libraries allocate memory at their first call. Raises CaptureError
    if it cannot be captured; out-of-memory errors pass unchanged. In both cases the current stream stays the same.
    (torch.cuda.graph would leave the capture's stream current.)
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.cuda.synchronize(stream.device)
    torch.cuda.empty_cache()  # a graph has separate memory: make room for it
    try:
        with torch.cuda.stream(stream):
            # Only this thread's calls are restricted: another one may pin memory or query events meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the capture has failed anyway
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
    """Ends the allocations of a failed capture from its pool; PyTorch before 2.13 does not (pytorch/pytorch#180395).

    Without this, later calls could neither empty the cache nor capture. Newer releases raise an error here."""
    if end := getattr(torch._C, "_cuda_endAllocateToPool", None):
        with contextlib.suppress(RuntimeError):
            end(stream.device.index, pool)
            torch._C._cuda_releasePool(stream.device.index, pool)


def _end_capturing(stream: "torch.cuda.Stream") -> None:
    """Makes PyTorch's generators forget a failed capture, with a successful one.

    Otherwise, the next random numbers outside of a graph, such as dropout's, reportedly raise "Offset increment outside
    graph capture encountered unexpectedly"."""
    graph = torch.cuda.CUDAGraph()
    with contextlib.suppress(RuntimeError), torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        torch.zeros(1, device=stream.device)
        graph.capture_end()


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether a GPU ran out of memory. PyTorch has an exception for its own allocator only."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
    )
