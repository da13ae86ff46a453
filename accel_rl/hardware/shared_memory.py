"""Memory and semaphores that processes share. Neither has a name, so a killed run leaves nothing behind."""

import ctypes
import math
import mmap
import os
import select
import sys
import tempfile
from typing import Any

import numpy as np

from accel_rl.errors import RunError

Layout = dict[str, tuple[tuple[int, ...], str]]  # name -> shape, dtype

ALIGNMENT = 64  # bytes: a cache line


def layout_bytes(layout: Layout) -> int:
    """Returns the number of bytes of a layout's arrays, without alignment."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())


class SharedArrays:
    """NumPy arrays in one anonymous piece of shared memory, whose file descriptor other processes inherit.

    fd: the descriptor of an existing piece; None: makes a new one, of zeros. Raises RunError if the system refuses."""

    def __init__(self, layout: Layout, fd: int | None = None):
        self._layout = layout
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

    def __reduce__(self) -> tuple[type["SharedArrays"], tuple[Layout, int]]:
        """Pickles the layout and the descriptor, which the process that unpickles has inherited."""
        assert self.fd >= 0, "these arrays are closed"
        return SharedArrays, (self._layout, self.fd)

    @property
    def size(self) -> int:
        """Size of the whole piece [bytes]."""
        return len(self._memory)

    @property
    def address(self) -> int:
        """Address in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def close(self) -> None:
        """Closes the file descriptor; the memory itself is freed with the last array."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file(size: int) -> int:
    if sys.platform == "linux":
        fd = os.memfd_create("accel_rl")
    else:
        with tempfile.TemporaryFile() as file:  # its name is deleted at once
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except OSError as error:  # `ulimit -f`, a container without memory for files
        os.close(fd)
        raise RunError(f"cannot allocate {size / 2**20:,.1f} MB of shared memory: {error.strerror}") from None
    return fd


class Semaphore:
    """A count of tokens that processes share. Name it after the event that a token announces.

    one_at_a_time: each `try_acquire` takes a single token, so several processes can wait for one semaphore."""

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
        """The file descriptor that is readable while there are tokens."""
        return self.fds[0]

    def release(self, count: int = 1) -> None:
        """Adds count tokens: one system call, however many processes it wakes."""
        if sys.platform == "linux":
            os.eventfd_write(self.fds[1], count)
        else:
            os.write(self.fds[1], b"x" * count)

    def try_acquire(self) -> int:
        """Takes all tokens, or one if one_at_a_time, without waiting; returns their number."""
        try:
            if sys.platform == "linux":
                return os.eventfd_read(self.fds[0])
            return len(os.read(self.fds[0], 1 if self._one_at_a_time else 65536))
        except BlockingIOError:
            return 0

    def drain(self) -> None:
        """Takes all tokens."""
        while self.try_acquire():
            pass

    def close(self) -> None:
        for fd in set(self.fds):
            os.close(fd)


def make_poller(*fds: int) -> "select.poll":
    """Returns an object whose poll() waits until any of the file descriptors is readable."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return poller
