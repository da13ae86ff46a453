"""Keeps freed memory in the process, which saves a tenth of an update's time on a CPU."""

import contextlib
import ctypes

LARGEST_KEPT = 256 << 20  # bytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
OLD_LIMIT = 32 << 20  # older releases of glibc refuse a larger M_MMAP_THRESHOLD


def keep_freed_memory() -> None:
    """Makes this process keep its freed memory, if the C library is glibc; otherwise does nothing.

    By default, each update's activations return to the system, which clears every page before the next update gets it.
    Allocations larger than LARGEST_KEPT always return to the system.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) or mallopt(M_MMAP_THRESHOLD, OLD_LIMIT)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
