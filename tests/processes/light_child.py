"""A program for a fork server that imports next to nothing and exits with the status it is sent."""

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from accel_rl.errors import UsageError


def main(fd: int) -> None:
    connection: Connection[Any, Any] = Connection(fd)
    connection.recv()  # its setup
    os._exit(connection.recv())


def talk(fd: int) -> None:
    """Writes to both outputs, and reports that it could."""
    connection: Connection[Any, Any] = Connection(fd)
    connection.recv()
    for stream in (sys.stdout, sys.stderr):
        print("a line", file=stream, flush=True)
        print("a last line", file=stream)
    connection.send(("written", 7))


def leave_behind(fd: int) -> None:
    """Exits like `main`, but leaves three processes behind, one of them in its own session, one from a shell that has
    ended; sends their ids."""
    connection: Connection[Any, Any] = Connection(fd)
    connection.recv()
    started = [subprocess.Popen(["sleep", "3600"], start_new_session=apart) for apart in (False, True)]
    shell = subprocess.run(["sh", "-c", "sleep 3600 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True)
    connection.send([*(process.pid for process in started), int(shell.stdout)])
    os._exit(connection.recv())


def hang_up(fd: int) -> None:
    """Closes its connection, but does not end."""
    connection: Connection[Any, Any] = Connection(fd)
    connection.recv()
    connection.close()
    time.sleep(3600)


def fail(argument: Any) -> None:
    """Prepares nothing, but fails as with a full disk, or with an error that says where it imports from."""
    if argument == "disk":
        raise OSError("no space is left")
    raise UsageError(f"imports from {sys.path[0]}")
