"""How many updates a second go through the central store. `python -m accel_rl.bench.store` is one of its learners.

    python benchmarks/store.py [--learners 2 8] [--full] [--json FILE]

Learners, each a process on a core of its own with one thread of torch, do over and over what comes after a gradient in
an asynchronous run: clip it, and exchange parameters and RMSProp's state with the store. The network is that of A3C on
Pong.

    2 learners    their updates per second, over twice those of one learner with the other core idle
    8 learners    (by default on 16 cores) how long an update takes, over how long it takes one learner alone

Contestants take turns: so many learners on a store of 1, 3 or 8 chunks, or of 3 without locks. Ratios are medians over
the rounds with 95 % intervals.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import torch

from accel_rl.bench.output import shown, write_json
from accel_rl.bench.timing import Schedule, Shares, Turns, alternate, ratio, show_ratio
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.signals import leave_signals_to_parent
from accel_rl.hardware.topology import available_cpus, physical_cores
from accel_rl.training.build import build_algo, build_store, build_update
from accel_rl.training.resolve import Config, resolve
from accel_rl.updates.central_update import CentralUpdate
from accel_rl.updates.parameter_store import CentralStore, StoreSetup

VERSION = 1  # of the JSON
STORES: dict[str, dict[str, Any]] = {
    "3 chunks": {"chunks": 3},
    "1 chunk": {"chunks": 1},
    "8 chunks": {"chunks": 8},
    "no locks": {"locks": "none"},
}
MANY, CORES_FOR_MANY = 8, 16
FULL_ROUNDS, BUDGET_S = 20, 200.0
HEAD_START_S = 0.01  # from the message that begins a turn to the beginning
LEAST_RATE, MOST_TIME = 0.6, 3.0  # of 2 learners with 3 chunks, of MANY

Result = dict[str, Any]


@dataclass(frozen=True)
class StoreOptions:
    """learners: numbers of them, beside one. seconds: of each contestant in a round.

    Raises UsageError for a value out of range."""

    learners: tuple[int, ...] | None = None  # 2, and MANY on a machine with CORES_FOR_MANY
    seconds: float = 1.0
    rounds: int | None = None
    full: bool = False
    json: Path | None = None

    def __post_init__(self) -> None:
        most = len(available_cpus())
        for number in self.numbers:
            if not 1 <= number <= most:
                raise UsageError(f"learners={number} must be from 1 to {most}, the processors that there are")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} must be at least 1")

    @property
    def numbers(self) -> list[int]:
        """Of learners."""
        chosen = self.learners or ((2, MANY) if len(physical_cores(available_cpus())) >= CORES_FOR_MANY else (2,))
        return sorted({1, *chosen})

    def schedule(self) -> Schedule:
        if self.rounds or self.full:
            return Schedule(self.seconds, self.rounds or FULL_ROUNDS)
        return Schedule(self.seconds, FULL_ROUNDS, BUDGET_S)


class Learners:
    """Processes that make updates in any of these stores when they are told to, each on a processor of its own."""

    def __init__(self, stores: Sequence[tuple[Config, CentralStore]], cpus: Sequence[int]):
        setups = [(config, store.setup) for config, store in stores]
        fds = [setup.fd for _, setup in setups]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._processes: list[tuple[subprocess.Popen[bytes], Connection[Any, Any]]] = []
        for cpu in cpus:
            ours, theirs = Pipe()
            command = [sys.executable, "-m", "accel_rl.bench.store", str(theirs.fileno()), str(cpu)]
            popen = subprocess.Popen(command, pass_fds=[theirs.fileno(), *fds], env=environment)
            theirs.close()
            ours.send(setups)
            self._processes.append((popen, ours))
        self._answers(len(cpus))

    def updates(self, store: int, number: int, seconds: float) -> list[tuple[int, float, float]]:
        """What the first so many make in that store meanwhile, the others asleep: for each, how many updates in how
        many seconds, of which it waited for locks so many."""
        start = time.perf_counter() + HEAD_START_S  # the clock is the same in all processes
        for _, connection in self._processes[:number]:
            connection.send((store, start, start + seconds))
        return self._answers(number)

    def _answers(self, number: int) -> list[Any]:
        try:
            return [connection.recv() for _, connection in self._processes[:number]]
        except (EOFError, ConnectionError):
            self.close()
            raise RunError("a learner's process has died") from None

    def close(self) -> None:
        for popen, connection in self._processes:
            connection.close()
            popen.wait()


class Exchanging:
    """So many learners on one store, as a contestant; its rate is updates/s."""

    def __init__(self, name: str, learners: Learners, store: int, number: int):
        self.name, self.shares = name, Shares()
        self.learners, self.store, self.number = learners, store, number

    def run(self, seconds: float) -> float:
        done = self.learners.updates(self.store, self.number, seconds)
        self.shares = {"lock": sum(waited_s / seconds for _, seconds, waited_s in done) / len(done)}
        return sum(updates / seconds for updates, seconds, _ in done)

    def close(self) -> None:
        pass


def run(options: StoreOptions) -> Result:
    """Runs and prints the whole benchmark, and writes its file; returns what the JSON holds."""
    if options.json:  # now rather than after minutes of work
        options.json.parent.mkdir(parents=True, exist_ok=True)
    print(format_machine(describe_machine()))
    cpus = processors(max(options.numbers))
    with ExitStack() as stack:
        stores: list[tuple[Config, CentralStore]] = []
        for settings in STORES.values():
            config = resolve({"algo": "a3c", "env": "pong", "device": "cpu", **settings})
            stores.append((config, build_store(config)))
            stack.callback(stores[-1][1].close)
        learners = Learners(stores, cpus)
        stack.callback(learners.close)
        contestants = [
            Exchanging(f"{name} x {number}", learners, index, number)
            for index, name in enumerate(STORES)
            for number in options.numbers
        ]
        turns = alternate(contestants, options.schedule(), "store")
    result = {
        "benchmark": "store",
        "version": VERSION,
        "machine": describe_machine(),
        "options": shown(options),
        "parameters": stores[0][1].spans[-1].stop,
        "cpus": cpus,
        "contestants": {c.name: described(c, turns) for c in contestants},
        "ratios": {k: v for name in STORES for k, v in ratios(name, options.numbers, turns).items()},
    }
    show(result)
    write_json(options.json, result)
    return result


def processors(number: int) -> list[int]:
    """One on each core as far as there are so many, else all hardware threads take part."""
    cores = physical_cores(available_cpus())
    return [core[0] for core in cores][:number] if len(cores) >= number else available_cpus()[:number]


def described(contestant: Exchanging, turns: dict[str, Turns]) -> Result:
    mine = turns[contestant.name]
    return {
        "learners": contestant.number,
        "updates_per_second": mine.median,
        "rates": mine.rates,
        "lock_share": mine.median_shares()["lock"],
    }


def ratios(name: str, numbers: Sequence[int], turns: dict[str, Turns]) -> Result:
    """Of one store: the learners' rate over that of as many alone, and its inverse, the time that an update takes over
    its time alone; what is to be reached beside those that have to."""
    found: Result = {}
    alone = turns[f"{name} x 1"].rates
    for number in numbers:
        if number == 1:
            continue
        together, ideal = turns[f"{name} x {number}"].rates, [number * rate for rate in alone]
        found[f"{name}: rate of {number} / {number} x rate of 1"] = ratio(together, ideal)
        found[f"{name}: time of an update, {number} learners / 1"] = ratio(ideal, together)
    first = next(iter(STORES))
    if name == first and 2 in numbers:
        found[f"{name}: rate of 2 / 2 x rate of 1"]["at least"] = LEAST_RATE
    if name == first and MANY in numbers:
        found[f"{name}: time of an update, {MANY} learners / 1"]["at most"] = MOST_TIME
    return found


def show(result: Result) -> None:
    """Prints the table."""
    cpus = ", ".join(map(str, result["cpus"]))
    print(f"\nUpdates of {result['parameters']:,} parameters in the central store, processors {cpus}; medians")
    print(f"{'':16}{'updates/s':>12}{'waiting for locks':>20}")
    for name, contestant in result["contestants"].items():
        print(f"{name:16}{contestant['updates_per_second']:12,.0f}{contestant['lock_share']:20.1%}")
    for name, value in result["ratios"].items():
        targets = [f"{bound} {value[bound]}" for bound in ("at least", "at most") if bound in value]
        print(f"{name:48}{', to be '.join([show_ratio(value), *targets])}")


# ---- a learner's process ----


def make_updates(update: CentralUpdate, start: float, end: float) -> tuple[int, float, float]:
    """From start to end: how many updates in how many seconds, and the seconds of these spent waiting for locks."""
    weight, learning_rate = torch.tensor(1), 1e-4
    time.sleep(max(0.0, start - time.perf_counter()))
    update.read_seconds()
    began, updates = time.perf_counter(), 0
    while (now := time.perf_counter()) < end or not updates:
        update._finish({}, weight, learning_rate)
        updates += 1
    return updates, now - began, update.read_seconds()["lock"]


def _main() -> None:
    leave_signals_to_parent()
    torch.set_num_threads(1)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[2])})
    setups: list[tuple[Config, StoreSetup]] = connection.recv()
    updates: list[Any] = []
    for config, setup in setups:
        updates.append(build_update(config, build_algo(config).policy, store=CentralStore.attach(setup)))
        gradient = updates[-1].parameters.gradient
        gradient.copy_(torch.randn(gradient.shape, generator=torch.Generator().manual_seed(int(sys.argv[2]))))
    connection.send(None)
    while True:
        try:
            store, start, end = connection.recv()
        except EOFError:
            return
        connection.send(make_updates(updates[store], start, end))


if __name__ == "__main__":
    _main()
