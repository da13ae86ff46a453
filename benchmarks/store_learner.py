"""A learner's process of benchmarks/store.py, which starts it as a script: it makes updates in a central store."""

import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from accel_rl.hardware.signals import leave_signals_to_parent
from accel_rl.training.build import build_algo, build_update
from accel_rl.training.resolve import Config
from accel_rl.updates import CentralStore, StoreSetup, Update


def make_updates(update: Update, start: float, end: float) -> tuple[int, float, float]:
    """Makes updates from start to end, times of perf_counter: at least one.

    Returns the number of updates, the seconds that they took, and the seconds of these spent waiting for locks."""
    num_samples, learning_rate = torch.tensor(1), 1e-4
    time.sleep(max(0.0, start - time.perf_counter()))
    update.read_seconds()
    began, updates = time.perf_counter(), 0
    while (now := time.perf_counter()) < end or not updates:
        update.exchange.apply({}, num_samples, learning_rate)
        updates += 1
    return updates, now - began, update.read_seconds()["lock"]


def main() -> None:
    """Answers requests (store, start, end) with what `make_updates` returns, until the other end closes."""
    leave_signals_to_parent()
    torch.set_num_threads(1)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    cpu = int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})
    setups: list[tuple[Config, StoreSetup]] = connection.recv()
    updates: list[Update] = []
    for config, setup in setups:
        updates.append(build_update(config, build_algo(config).policy, store=CentralStore.attach(setup)))
        gradient = updates[-1].parameters.gradient
        gradient.copy_(torch.randn(gradient.shape, generator=torch.Generator().manual_seed(cpu)))
    connection.send(None)
    while True:
        try:
            store, start, end = connection.recv()
        except EOFError:
            return
        connection.send(make_updates(updates[store], start, end))


if __name__ == "__main__":
    main()
