"""A program for a fork server that imports next to nothing: it exits with the status that it is told."""

import os
from multiprocessing.connection import Connection
from typing import Any


def main(fd: int) -> None:
    connection: Connection[Any, Any] = Connection(fd)
    connection.recv()  # its setup
    os._exit(connection.recv())
