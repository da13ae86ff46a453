"""What child processes do: leave signals to their parent, end with it, report errors to it, and end the processes that
they have started. Imports no torch."""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from accel_rl.errors import RunError, UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OOM_SCORE = 500  # as if the process used half of all memory in addition


def leave_signals_to_parent() -> None:
    """Makes this process ignore SIGINT and SIGTERM, and makes the kernel kill it when its parent's thread ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    when_parent_ends(signal.SIGKILL)


def end_with_parent(parent: int) -> None:
    """Calls `leave_signals_to_parent`, and exits if the parent, process `parent`, has ended already."""
    leave_signals_to_parent()
    if os.getppid() != parent:
        os._exit(0)


def stop_with_parent(parent: int) -> None:
    """Makes a run just forked by process `parent` receive SIGTERM when that process ends, however it does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # replaces the inherited handler
    when_parent_ends(signal.SIGTERM)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)


def when_parent_ends(number: int) -> None:
    """Makes this process receive this signal when its parent's thread ends; replaces an earlier one. Linux only."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def end_before_parent_without_memory() -> None:
    """Makes the system kill this process before its parent if memory runs out; the parent reports it. Linux only."""
    with contextlib.suppress(OSError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + OOM_SCORE)))


def adopt_orphans() -> None:
    """Makes this process adopt the processes that its descendants leave behind. Linux only."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_children(kept: Collection[int] = ()) -> None:
    """Kills all children of this process except those kept, then the orphans that they leave (see `adopt_orphans`)."""
    while ended := [process for process in psutil.Process().children() if process.pid not in kept]:
        for process in ended:
            try:
                process.kill()
                process.wait()
            except psutil.AccessDenied:  # it belongs to another user now
                kept = {*kept, process.pid}


@contextlib.contextmanager
def reporting(control: "Connection[Any, Any]") -> Iterator[None]:
    """Sends the framework's warnings, and the error that ends the block, to the parent, which has the log.

    The block also ends when the parent hangs up."""
    logging.getLogger("accel_rl").addHandler(SendWarnings(control))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            yield
        except UsageError as error:
            control.send(("usage", str(error)))
        except RunError as error:
            control.send(("failed", str(error)))


class SendWarnings(logging.Handler):
    """A handler that passes log records on to the parent."""

    def __init__(self, control: "Connection[Any, Any]"):
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        self._control.send(("warning", record.getMessage()))
