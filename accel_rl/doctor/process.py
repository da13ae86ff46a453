"""Runs checks in a process of their own. `python -m accel_rl.doctor.process` is that process.

All share one process, since a new one spends seconds on importing torch and on CUDA. A check that ends it, or leaves
CUDA unusable (after an illegal access every later call fails), fails alone: the others run in the next process.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

from accel_rl.doctor.float32 import CUBLAS
from accel_rl.doctor.probe import Result, run_check
from accel_rl.hardware.signals import leave_signals_to_parent

MODULE = "accel_rl.doctor.process"
TIMEOUT_S = 180.0  # for one check, the start of its process included, and kernels that are loaded for the first time


def run_in_processes(names: Sequence[str], device: str, module: str | None = None) -> Iterator[Result]:
    """Yields the result of each check, in their order. module: the process's; it answers like this one (default)."""
    remaining = list(names)
    while remaining:
        for result in _run_in_one_process(remaining, device, module or MODULE):
            yield result
            remaining.remove(result.name)


def _run_in_one_process(names: Sequence[str], device: str, module: str) -> Iterator[Result]:
    """Yields results until the process ends; at least one."""
    ours, theirs = Pipe()
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", module, str(theirs.fileno()), device, json.dumps(list(names))]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=said, stderr=said, process_group=0
        )
        theirs.close()
        num_results, running = 0, names[0]
        try:
            while num_results < len(names):
                result = _receive(ours)
                if isinstance(result, str):  # the process begins with this check
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
    """Returns the result of a check whose process has ended or hangs."""
    status = process.wait()
    said.seek(0)
    tail = "\n".join(said.read().splitlines()[-30:])
    reason = f"its process ended with status {status}, or hung for {TIMEOUT_S:g} s; the last it said:\n{tail}"
    return Result(name, "failed", 0.0, failure=reason)


def main() -> None:
    leave_signals_to_parent()
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    import torch

    import accel_rl.doctor.checks  # noqa: F401  registers them

    device = torch.device(sys.argv[2])
    os.environ.setdefault(*CUBLAS)  # before cuBLAS is loaded
    torch.cuda.set_device(device)
    for name in json.loads(sys.argv[3]):
        connection.send(name)
        connection.send(run_check(name, device))
        try:
            torch.cuda.synchronize(device)
            torch.ones(1, device=device).add_(1).item()
            torch.cuda.empty_cache()  # raises if a capture that has failed is still under way
        except Exception:  # CUDA is unusable from here on
            traceback.print_exc()
            return


if __name__ == "__main__":
    main()
