"""Processes that share a central store with a test: `Process(store, role, ...)` starts one.

All elements of a chunk are its version number, so a torn chunk is certain to be noticed.
"""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD
from accel_rl.updates.parameter_store import CentralStore, LockedTensors
from accel_rl.updates.store_exchange import StoreExchange
from tests.helpers.forks import ForkedProcess


class Process:
    """Runs a role in a fork of this process, which has imported torch."""

    def __init__(self, store: CentralStore, role: Callable[..., None], *arguments: Any):
        def main() -> None:
            torch.set_num_threads(1)
            role(CentralStore.attach(store.setup), *arguments)

        self._process = ForkedProcess(
            main,
            [],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[store.setup.fd],
            env=dict(os.environ),
            process_group=0,
        )
        self._stdin, self._stdout = os.fdopen(self._process.stdin, "w"), os.fdopen(self._process.stdout)

    def say(self) -> None:
        print(file=self._stdin, flush=True)

    def hear(self) -> str:
        return self._stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self.finish(-signal.SIGKILL)

    def finish(self, status: int = 0) -> str:
        """Returns the process's output; asserts its exit status."""
        self._stdin.close()
        words = self._stdout.read()
        self._stdout.close()
        assert self._process.wait() == status
        return words.strip()


def fill(part: LockedTensors, values: float) -> None:
    for tensor in part.staging.values():
        tensor.fill_(values)


def check(part: LockedTensors) -> None:
    """Asserts that all of part is from one version. Checks copies, since a learner reads copies."""
    version, copies = part.version, [tensor.clone() for tensor in part.current.values()]
    for copy in copies:
        assert bool((copy == version).all()), f"version {version} is torn: {sorted({*copy.tolist()})[:5]}"


def hammer(store: CentralStore, seconds: float) -> None:
    """Waits for a line to begin, writes all parts in turn for some seconds, and prints how often."""
    print(flush=True)
    sys.stdin.readline()
    print(go_around(store, seconds, is_writer=True))


def go_around(store: CentralStore, seconds: float, is_writer: bool) -> int:
    """Reads or writes all parts in turn for some seconds, at least once; returns how often."""
    count, end = 0, time.monotonic() + seconds

    def visit(part: LockedTensors) -> None:
        check(part)
        if is_writer:
            fill(part, part.version + 1)
            part.publish()

    while not count or time.monotonic() < end:
        store.for_each_chunk(lambda chunk: visit(store.chunks[chunk]))
        for part in (store.statistics, store.target):
            with store.locked(part):
                visit(part)
        count += 1
    return count


def hold(store: CentralStore) -> None:
    """Locks chunk 0, the statistics and the target, half rewritten; waits for a line to release the chunk."""
    for part in (store.chunks[0], store.statistics, store.target):
        part.acquire()
        for tensor in part.staging.values():
            tensor.view(-1)[: -(-tensor.numel() // 2)].fill_(99)
    print("holding", flush=True)
    sys.stdin.readline()
    store.chunks[0].release()
    sys.stdin.readline()


class Weights(nn.Module):
    """A module with one vector of parameters."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=dtype))


def learn(store: CentralStore, size: int, num_updates: int) -> None:
    """Waits for a line to begin, runs `update_store`, and prints its result."""
    print(flush=True)
    sys.stdin.readline()
    print(json.dumps(update_store(store, size, num_updates)))


def update_store(store: CentralStore, size: int, num_updates: int) -> dict[str, int]:
    """Makes updates that subtract 1 from all parameters and add 1 to the statistic "count". Syncs the target after
    about 8 updates of all learners; returns the target's checksum at each sync count."""
    network, target = Weights(size), Weights(size).requires_grad_(False)
    learner, count = Update(network, SGD(), exchange=StoreExchange(store)), torch.zeros((), dtype=torch.float64)
    targets: dict[int, str] = {}
    for _ in range(num_updates):
        learner.parameters.gradient.fill_(1.0)  # PyTorch may refuse to compute gradients in a fork
        learner.exchange.apply({}, torch.tensor(1), 1.0)
        with learner.exchange.locked_buffers({"count": count}):
            count += 1
        learner.sync_target(target, store.chunks[0].version // 8)
        targets[learner.state_dict()["num_syncs"]] = str(target.weight.tolist())
    learner.exchange.close()
    return {str(number): zlib.crc32(values.encode()) for number, values in targets.items()}
