"""Starts programs of this package as processes that import what this one does. Imports no torch."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any


def child_environment() -> dict[str, str]:
    """Returns this process's environment, with the places that it imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def spawn(
    module: str,
    *arguments: object,
    fds: Iterable[int] = (),
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    **options: Any,
) -> "subprocess.Popen[bytes]":
    """Starts `python -m module arguments ...`, which inherits these descriptors and no Ctrl-C of a terminal.

    environment: what is added to this process's. options: as subprocess.Popen takes them."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    env = {**child_environment(), **(environment or {})}
    return subprocess.Popen(command, stdin=stdin, pass_fds=[*fds], env=env, process_group=0, **options)


def spawn_connected(
    module: str, *arguments: object, fds: Iterable[int] = (), **options: Any
) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    """Starts `python -m module FD arguments ...`; returns it with this end of the connection whose other end is FD."""
    ours, theirs = Pipe()
    try:
        return spawn(module, theirs.fileno(), *arguments, fds=[theirs.fileno(), *fds], **options), ours
    finally:
        theirs.close()


def describe_exit(status: int | None) -> str:
    """Describes how a process has ended, from its exit status or minus the signal that killed it."""
    return f"was killed by {signal.Signals(-status).name}" if status and status < 0 else f"exited with status {status}"
