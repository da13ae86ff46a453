"""Runs the self-test's trials in a process of their own (`python -m accel_rl.doctor.trials`).

All share one process, since a new one spends seconds on importing torch. A trial that ends it fails alone: the others
run in the next process.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, NamedTuple

from accel_rl.processes.spawning import spawn_connected

MODULE = "accel_rl.doctor.trials"
TIMEOUT_S = 180.0  # for one trial, the start of its process included, and kernels that are loaded for the first time


class Result(NamedTuple):
    """How a trial ended: what it measured or, if it failed, why."""

    name: str
    data: dict[str, Any]
    failure: str = ""


def run_in_processes(names: Sequence[str]) -> Iterator[Result]:
    """Yields the result of each trial, in their order."""
    remaining = list(names)
    while remaining:
        for result in _run_in_one_process(remaining):
            yield result
            remaining.remove(result.name)


def _run_in_one_process(names: Sequence[str]) -> Iterator[Result]:
    """Yields results until the process ends; at least one."""
    with tempfile.TemporaryFile("w+") as said:
        process, ours = spawn_connected(MODULE, json.dumps(list(names)), stdout=said, stderr=said)
        num_results, running = 0, names[0]
        try:
            while num_results < len(names):
                result = _receive(ours)
                if isinstance(result, str):  # the process begins with this trial
                    running = result
                    continue
                if result is None:
                    process.kill()
                    if running or not num_results:
                        yield _lost(running, process, said)
                    return
                num_results, running = num_results + 1, ""
                yield result
        finally:
            process.kill()
            process.wait()
            ours.close()


def _receive(connection: "Connection[Any, Any]") -> Any:
    """Returns what the process has sent; None if it has ended, or has sent nothing for too long."""
    try:
        return connection.recv() if connection.poll(TIMEOUT_S) else None
    except (EOFError, OSError):
        return None


def _lost(name: str, process: "subprocess.Popen[bytes]", said: IO[str]) -> Result:
    """Returns the result of a trial whose process has ended or hangs."""
    status = process.wait()
    said.seek(0)
    tail = "\n".join(said.read().splitlines()[-30:])
    reason = f"its process ended with status {status}, or hung for {TIMEOUT_S:g} s; the last it said:\n{tail}"
    return Result(name, {}, reason)
