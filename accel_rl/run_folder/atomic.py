"""Replaces files atomically: a reader finds either the old content or all of the new content."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from accel_rl.errors import RunError


def write_file(
    path: Path, content: bytes | Callable[[BinaryIO], object], kind: str, previous: Path | None = None
) -> None:
    """Replaces the file at path. content: the new content, or a function that writes it to an open file. previous: a
    path under which the old content stays.

    Once this returns, both survive a power cut. kind: the kind of file, for the message. Raises RunError if writing
    fails; both files are then unchanged."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            _sync(file)
        if previous and os.path.exists(path):
            _link(path, previous)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        survivor = "; the previous one is intact" if os.path.exists(path) else ""
        raise RunError(f"could not write the {kind} {path}: {error.strerror}{survivor}") from error


def _link(path: Path, name: Path) -> None:
    """Gives the file a second name atomically; there is a file at path at all times."""
    temporary = name.with_name(name.name + ".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # a file system without hard links
        with open(path, "rb") as source, open(temporary, "wb") as copy:
            shutil.copyfileobj(source, copy)
            _sync(copy)
    os.replace(temporary, name)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes new and replaced names in a folder survive a power cut, if the file system supports that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
