"""A program for a fork server, `main`, that answers with `Findings` about the process it runs in."""

import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch


class Findings(NamedTuple):
    connection: int
    fds: dict[int, str]
    num_threads: int
    openblas_threads: str | None
    noise: list[float]
    sum_with_two_threads: float
    oom_score: int


def main(fd: int) -> None:
    """Sends its findings through the connection fd."""
    connection: Connection[Any, Any] = Connection(fd)
    num_threads = len(os.listdir("/proc/self/task"))
    torch.set_num_threads(2)
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    total = float(torch.ones(10**6).sum())
    noise, score = np.random.rand(3).tolist(), int(Path("/proc/self/oom_score_adj").read_text())
    connection.send(Findings(fd, open_files(), num_threads, threads, noise, total, score))


def open_files() -> dict[int, str]:
    """Returns the descriptors above stderr, and the file of each."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of the listing itself
            continue
    return {fd: target for fd, target in found.items() if fd > 2}
