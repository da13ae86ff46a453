"""Secures standard streams, which may be closed, full or gone, so that printing ends no process. Imports no torch."""

import contextlib
import io
import os
import sys
from typing import Any


def secure_streams() -> None:
    """Gives one of our processes streams that it can always write to."""
    open_closed_streams()
    drop_what_fails("stdout", "stderr")


def open_closed_streams() -> None:
    """Opens /dev/null in place of each closed stream (`2>&-`), for this process and those that it starts.

    Call it before anything is opened: a file would get the stream's descriptor, and what is written to the stream."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def drop_what_fails(*names: str) -> None:
    """Makes this process's own streams of these names drop what they cannot write, rather than raise OSError.

    A disk may be full, a pipe may be full or without a reader, a terminal gone."""
    for name in names:
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):  # otherwise another program has replaced it
            with contextlib.suppress(OSError):
                stream.flush()
            file = io.BufferedWriter(_DroppingFile(stream.fileno(), "w", closefd=False))
            at_once = stream.line_buffering or stream.write_through
            text = io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=at_once)
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)  # which Python restores at its end


class _DroppingFile(io.FileIO):
    """A file that claims to have written what it cannot take."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            written: int | None = super().write(data)
            if written is not None:  # None: a full, non-blocking pipe
                return written
        return memoryview(data).nbytes
