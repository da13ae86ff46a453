"""Memory and signals that processes share. Neither has a name, so nothing can be left behind by a killed run."""

import ctypes
import mmap
import os
import select
import sys
import tempfile
from typing import Any

import numpy as np

Layout = dict[str, tuple[tuple[int, ...], str]]  # name -> shape, dtype

ALIGNMENT = 64  # bytes: a cache line


class SharedArrays:
    """NumPy arrays in one anonymous piece of shared memory; other processes inherit its file descriptor."""

    def __init__(self, layout: Layout, fd: int | None = None):
        offsets, size = [], 0
        for shape, dtype in layout.values():
            offsets.append(size)
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        self.fd = _anonymous_file(size) if fd is None else fd
        self._memory = mmap.mmap(self.fd, size)
        self.arrays: dict[str, np.ndarray[Any, Any]] = {
            name: np.ndarray(shape, dtype, buffer=self._memory, offset=offset)
            for (name, (shape, dtype)), offset in zip(layout.items(), offsets, strict=True)
        }

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._memory)

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def close(self) -> None:
        """Gives the descriptor back, once; the memory itself goes when the last array does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file(size: int) -> int:
    if sys.platform == "linux":
        fd = os.memfd_create("accel_rl")
    else:
        with tempfile.TemporaryFile() as file:  # its name is gone as soon as it exists
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class Signal:
    """Counts how often a fact has been announced and not yet been taken note of, across processes.

    one_at_a_time: each `take` is of one announcement only, so that several processes can wait for the same signal.
    """

    def __init__(self, one_at_a_time: bool = False):
        self._one_at_a_time = one_at_a_time
        if sys.platform == "linux":
            fd = os.eventfd(0, os.EFD_NONBLOCK | (os.EFD_SEMAPHORE if one_at_a_time else 0))
            self.fds = (fd, fd)
        else:
            self.fds = os.pipe()
            os.set_blocking(self.fds[0], False)

    @property
    def fd(self) -> int:
        """Readable while an announcement is pending."""
        return self.fds[0]

    def announce(self, count: int = 1) -> None:
        """One system call, however many processes it wakes."""
        if sys.platform == "linux":
            os.eventfd_write(self.fds[1], count)
        else:
            os.write(self.fds[1], b"x" * count)

    def take(self) -> int:
        """The number of announcements since the last call (0 or 1 if one at a time); never waits."""
        try:
            if sys.platform == "linux":
                return os.eventfd_read(self.fds[0])
            return len(os.read(self.fds[0], 1 if self._one_at_a_time else 65536))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        for fd in set(self.fds):
            os.close(fd)


def poller(*fds: int) -> "select.poll":
    """Waits for any of the descriptors to become readable."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return poll
