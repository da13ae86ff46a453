"""Locks a folder, so only one process at a time writes to it."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from accel_rl.errors import UsageError

LOCK = "lock"  # names the process that is writing to the folder, or was the last to do so


@contextlib.contextmanager
def locked(folder: Path, kind: str) -> Iterator[None]:
    """Creates the folder of a run or an experiment (kind) if needed, and keeps other processes from writing to it.

    The lock ends with this process, however it ends. It has no effect on a disk without locks. Raises UsageError if
    another process holds it, or if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise UsageError(f"cannot write the {kind}'s folder {folder}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another one"
            raise UsageError(
                f"process {owner} is writing to the {kind}'s folder {folder}: wait until it ends, stop it, or give a "
                f"new {kind} another --out"
            ) from None
        except OSError:  # a disk without locks
            pass
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but names no process
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield


def is_being_written(folder: Path) -> bool:
    """Tells whether the process named in a folder's lock still holds it; False for one on another machine or of another
    user. It does not try to take the lock, which could keep a run from starting."""
    lock = (folder / LOCK).resolve()
    try:
        pid, host = lock.read_text().strip().split(" on ")
        files = psutil.Process(int(pid)).open_files() if host == socket.gethostname() else []
    except (OSError, ValueError, psutil.Error):
        return False
    return str(lock) in {file.path for file in files}
