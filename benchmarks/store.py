"""Measures how many updates per second go through the central store.

python benchmarks/store.py [--learners 2 8] [--full] [--json FILE]

Learners, each a process on a core of its own with one torch thread, repeat what follows a gradient in an asynchronous
run: they clip it, and exchange parameters and RMSProp's state with the store. The network is that of A3C on Pong.

    2 learners    their updates per second, over twice those of one learner while the other core is idle
    8 learners    (by default on 16 cores or more) the time of an update, over its time for one learner alone

The contestants are numbers of learners on a store of 1, 3 or 8 chunks, or of 3 chunks without locks; they take turns.
Ratios are medians over the rounds with 95 % intervals.
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

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Shares, Turns, alternate, format_ratio, ratio
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import available_cpus, physical_cores
from accel_rl.training.build import build_store
from accel_rl.training.resolve import Config, resolve
from accel_rl.updates import CentralStore
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program

VERSION = 1  # of the JSON
STORES: dict[str, dict[str, Any]] = {
    "3 chunks": {"chunks": 3},
    "1 chunk": {"chunks": 1},
    "8 chunks": {"chunks": 8},
    "no locks": {"locks": "none"},
}
MANY, CORES_FOR_MANY = 8, 16
BUDGET_S = 200.0
HEAD_START_S = 0.01  # from the message that announces a turn to its start
LEARNER = Path(__file__).with_name("store_learner.py")
LEAST_RATE, MOST_TIME = 0.6, 3.0  # the targets: 2 learners with 3 chunks, and MANY

Result = dict[str, Any]


@dataclass(frozen=True)
class StoreOptions(TurnOptions):
    """Options of the benchmark. learners: numbers of learners to compare with one (None: the defaults of --learners).

    Raises UsageError for a value out of range."""

    learners: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(available_cpus())
        for number in self.numbers:
            if not 1 <= number <= most:
                raise UsageError(f"learners={number} must be from 1 to {most}, the number of logical CPUs")

    @property
    def numbers(self) -> list[int]:
        """Numbers of learners, one included."""
        chosen = self.learners or ((2, MANY) if len(physical_cores(available_cpus())) >= CORES_FOR_MANY else (2,))
        return sorted({1, *chosen})


class Learners:
    """Processes that make updates in any of these stores on request, each on a logical CPU of its own."""

    def __init__(self, stores: Sequence[tuple[Config, CentralStore]], cpus: Sequence[int]):
        setups = [(config, store.setup) for config, store in stores]
        fds = [setup.fd for _, setup in setups]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._processes: list[tuple[subprocess.Popen[bytes], Connection[Any, Any]]] = []
        for cpu in cpus:
            ours, theirs = Pipe()
            command = [sys.executable, str(LEARNER), str(theirs.fileno()), str(cpu)]
            popen = subprocess.Popen(command, pass_fds=[theirs.fileno(), *fds], env=environment)
            theirs.close()
            ours.send(setups)
            self._processes.append((popen, ours))
        self._receive(len(cpus))

    def updates(self, store: int, number: int, seconds: float) -> list[tuple[int, float, float]]:
        """Lets the first `number` learners make updates in that store while the other ones sleep.

        Returns what `make_updates` (store_learner.py) returns, for each learner."""
        start = time.perf_counter() + HEAD_START_S  # the clock is the same in all processes
        for _, connection in self._processes[:number]:
            connection.send((store, start, start + seconds))
        return self._receive(number)

    def _receive(self, number: int) -> list[Any]:
        try:
            return [connection.recv() for _, connection in self._processes[:number]]
        except (EOFError, ConnectionError):
            self.close()
            raise RunError("a learner's process has died; its traceback stands above") from None

    def close(self) -> None:
        for popen, connection in self._processes:
            connection.close()
            popen.wait()


class Exchanging:
    """A number of learners on one store, as a contestant whose rate is updates/s."""

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
    """Runs the whole benchmark, prints its table and writes its file; returns what the JSON holds."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    cpus = choose_cpus(max(options.numbers))
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
        turns = alternate(contestants, options.schedule(BUDGET_S), "store")
    result = {
        **describe_run("store", VERSION, options),
        "parameters": stores[0][1].spans[-1].stop,
        "cpus": cpus,
        "contestants": {c.name: describe(c, turns) for c in contestants},
        "ratios": {k: v for name in STORES for k, v in ratios(name, options.numbers, turns).items()},
    }
    show(result)
    write_json(options.json, result)
    return result


def choose_cpus(number: int) -> list[int]:
    """Returns one logical CPU on each of `number` cores; with fewer cores, the first logical CPUs."""
    cores = physical_cores(available_cpus())
    return [core[0] for core in cores][:number] if len(cores) >= number else available_cpus()[:number]


def describe(contestant: Exchanging, turns: dict[str, Turns]) -> Result:
    """Returns one contestant's row."""
    mine = turns[contestant.name]
    return {
        "learners": contestant.number,
        "updates_per_second": mine.median,
        "rates": mine.rates,
        "lock_share": mine.median_shares()["lock"],
    }


def ratios(name: str, numbers: Sequence[int], turns: dict[str, Turns]) -> Result:
    """Returns for one store the rate of n learners over n times the rate of one, and its inverse: the time of an update
    over its time for one learner alone. Ratios that have a target carry it."""
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
    print(f"\nUpdates of {result['parameters']:,} parameters in the central store, logical CPUs {cpus}; medians")
    print(f"{'':16}{'updates/s':>12}{'waiting for locks':>20}")
    for name, contestant in result["contestants"].items():
        print(f"{name:16}{contestant['updates_per_second']:12,.0f}{contestant['lock_share']:20.1%}")
    for name, value in result["ratios"].items():
        targets = [f"{bound} {value[bound]}" for bound in ("at least", "at most") if bound in value]
        print(f"{name:48}{', should be '.join([format_ratio(value), *targets])}")


def main() -> int:
    parser = make_parser(__doc__)
    numbers = f"numbers of learners to compare with one (2; also {MANY} on {CORES_FOR_MANY} cores or more)"
    parser.add_argument("--learners", nargs="+", type=int, metavar="N", help=numbers)
    add_turns(parser)
    add_json(parser)
    given: dict[str, Any] = vars(parser.parse_args())
    learners = given.pop("learners")
    return run_program(lambda: run(StoreOptions(**given, learners=learners and tuple(learners))))


if __name__ == "__main__":
    sys.exit(main())
