"""Starts modules of this package as processes with the same import path. Imports no torch."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from accel_rl.errors import UsageError

PACKAGES = str(Path(__file__).parents[2])


def child_environment() -> dict[str, str]:
    """Returns this process's environment variables, with its import path as PYTHONPATH.

    The folder of this package, which is in no path after an editable installation, comes before the current folder,
    which may hold an accel_rl.py."""
    paths = [path or current_folder() for path in sys.path]
    if PACKAGES not in paths:
        here = current_folder()
        paths.insert(paths.index(here) if here in paths else len(paths), PACKAGES)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def current_folder() -> str:
    """Returns the current folder. Raises UsageError if it has been deleted; PyTorch could not be loaded there."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            f"the current folder has been deleted: {os.environ.get('PWD', '?')}; change to another one"
        ) from None


def search_current_folder() -> None:
    """Makes modules in the current folder importable, but after all others: it may hold a yaml.py."""
    if current_folder() not in sys.path:
        sys.path.append(current_folder())


def spawn(
    module: str,
    *arguments: object,
    fds: Iterable[int] = (),
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Starts `python -P -m module arguments ...`, which inherits these descriptors, but gets no Ctrl-C from a terminal.

    -P: the current folder does not come first in the import path, which equals this process's. environment: additional
    variables. options: further arguments of subprocess.Popen."""
    command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    env = {**child_environment(), **(environment or {})}
    return subprocess.Popen(command, stdin=stdin, pass_fds=[*fds], env=env, process_group=0, **options)


def spawn_connected(
    module: str, *arguments: object, fds: Iterable[int] = (), **options: Any
) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    """Starts `python -m module FD arguments ...`, with FD its end of a connection; returns the process and this end."""
    ours, theirs = Pipe()
    try:
        return spawn(module, theirs.fileno(), *arguments, fds=[theirs.fileno(), *fds], **options), ours
    finally:
        theirs.close()


class Answer(NamedTuple):
    """The result of a process: its exit status, its answer, and its output on stderr if that was a pipe."""

    status: int
    data: bytes
    said: bytes


def ask_process(
    module: str, *arguments: object, request: bytes = b"", timeout_s: float | None = None, **options: Any
) -> Answer:
    """Runs `python -m module FD arguments ...`, which reads the request from stdin and writes its answer to the file
    FD. Waits for its end. Raises subprocess.TimeoutExpired. In any case, no process of its group is left."""
    with _anonymous_file() as answer:
        fd = answer.fileno()
        with spawn(module, fd, *arguments, fds=[fd], stdin=subprocess.PIPE, **options) as process:
            try:
                _, said = process.communicate(request, timeout=timeout_s)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        answer.seek(0)
        return Answer(process.returncode, answer.read(), said or b"")


def _anonymous_file() -> BinaryIO:
    """Opens a file without a name: in memory if possible, since a disk may be full."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("accel_rl"), "w+b")
    return tempfile.TemporaryFile()


def describe_exit(status: int | None) -> str:
    """Describes how a process has ended. status: its exit status, or minus the signal that killed it; None if only its
    connection has ended."""
    if status is None:
        return "has closed its connection but still runs"
    if status >= 0:
        return f"exited with status {status}"
    hint = " (by the system, if memory ran out: see dmesg, and use fewer --envs)" if -status == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-status).name}{hint}"
