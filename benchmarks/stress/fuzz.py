"""Draws random settings of `accel-rl train`, and lists those that neither train nor are refused in one line.

python benchmarks/stress/fuzz.py [--resolve 10000] [--train 1000] [--texts 2000] [--seed 1] [--json FILE]

--resolve: the number of runs whose settings to resolve and check without writing anything: all algorithms, spaces,
samplers, learners, and other settings. --train: the number of runs to draw for one learner in this process and to train
until they have learned from three rollouts; all results must be finite. --texts: the number of YAML files, experiments
and command lines, most of them nonsense, for `accel-rl`. A refusal must be a UsageError of one line, before the run's
folder exists. Failures are listed with the fewest settings that reproduce them; then the exit status is 1.

The seed draws one part after the other, and --json is written after each.
"""

import itertools
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import fuzz_settings
import fuzz_texts
from accel_rl.bench.options import option
from accel_rl.bench.output import describe_run, write_json
from accel_rl.distributed.launch import trained
from accel_rl.distributed.run_request import RunRequest
from accel_rl.envs.batches.batch_simulator import make_simulator
from accel_rl.envs.probe import probe_spec
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.settings import resolve

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the programs of benchmarks/
from command_line import json_option, parse

PART = 100  # examples per part
LIMIT_S = 60.0  # time limit of an example
LIMIT_BYTES = 8 << 30  # address space beyond that in use at the start; a request for more fails at once
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # syncing costs nothing there

Try = Callable[[Any, Path], None]


class TooSlow(BaseException):
    """An example took too long."""


@dataclass
class Found:
    """The results of one kind of examples. refused, failures: by the function that raised, with a message; failures
    also with Python code that reproduces one. smallest: these examples."""

    passed: int = 0
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    smallest: dict[str, Any] = field(default_factory=dict)

    def try_example(self, trial: Try, example: Any) -> None:
        self.add(example, attempt(trial, example, LIMIT_S))

    def add(self, example: Any, error: BaseException | None) -> None:
        if error is None:
            self.passed += 1
            return
        place, is_refusal = where(error), isinstance(error, UsageError)
        entry = (self.refused if is_refusal else self.failures).setdefault(place, {"count": 0})
        entry["count"] += 1
        if is_refusal:
            entry.setdefault("message", str(error)[:300])
        elif place not in self.smallest or len(repr(example)) < len(repr(self.smallest[place])):
            self.set_example(place, example, error)

    def set_example(self, place: str, example: Any, error: BaseException) -> None:
        self.smallest[place] = example
        self.failures[place] |= {"message": f"{type(error).__name__}: {error}"[:600], "example": repr(example)}

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("passed", "num_refused", "refused", "failures")}

    @property
    def num_refused(self) -> int:
        return sum(int(entry["count"]) for entry in self.refused.values())

    @property
    def num_examples(self) -> int:
        return self.passed + self.num_refused + sum(int(entry["count"]) for entry in self.failures.values())

    @property
    def summary(self) -> str:
        return f"{self.passed} passed, {self.num_refused} refused, {len(self.failures)} ways to fail"


@dataclass(frozen=True)
class Options:
    resolve: int = option(10_000, "runs to resolve (10000)", type=int, metavar="N")
    train: int = option(1000, "runs to train (1000)", type=int, metavar="N")
    texts: int = option(2000, "files and command lines (2000)", type=int, metavar="N")
    seed: int = option(1, "decides what is drawn (1)", type=int)
    json: Path | None = json_option()


def attempt(trial: Try, example: Any, limit_s: float = 0) -> BaseException | None:
    """Tries an example with a folder that does not exist; returns the exception. It is an AssertionError if it is not a
    proper refusal. limit_s: the time limit; 0: none."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch, time_limit(limit_s) if limit_s else nullcontext():
        folder = Path(scratch) / "run"
        try:
            trial(example, folder)
        except UsageError as error:
            if folder.exists():
                wrong = "after its folder was written"
            elif len(str(error).splitlines()) != 1:
                wrong = "in several lines"
            else:
                return error
            return AssertionError(f"refused {wrong}: {error}").with_traceback(error.__traceback__)
        except (Exception, TooSlow) as error:
            return error
    return None


def resolve_run(run: dict[str, Any], folder: Path) -> None:
    RunRequest(run, out=folder).resolve()


def train_run(run: dict[str, Any], folder: Path) -> None:
    """Trains a run. Raises AssertionError if it took too few steps, or if a result is not finite."""
    with trained(RunRequest(run, out=folder), show=False):
        state = checkpoint.load(folder / checkpoint.CHECKPOINT)
    assert state["steps"] >= int(run["steps"]), "the run has ended early"
    assert all(tensor.isfinite().all() for tensor in state["policy"].values()), "parameters are not finite"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TooSlow in a block that takes longer."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def where(error: BaseException) -> str:
    """Returns the innermost file and function of this package in an error's traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "accel_rl" in Path(frame.filename).parts]
    if not frames:
        message = re.sub(r"\S*/\S*", "FILE", str(error).removeprefix("accel-rl: "))
        return re.split(r"[\d'=:]", message)[0].strip()[:60]  # a command leaves only its message
    parts = Path(frames[-1].filename).parts
    last = len(parts) - 1 - parts[::-1].index("accel_rl")
    return f"{'/'.join(parts[last:])}: {frames[-1].name}"


def shorten(trial: Try, found: Found, place: str) -> None:
    """Removes from a failing run all settings without which it fails in the same way."""
    first = attempt(trial, found.smallest[place], LIMIT_S)
    for name in [*found.smallest[place]]:
        fewer = {key: value for key, value in found.smallest[place].items() if key != name}
        error = attempt(trial, fewer, LIMIT_S)
        if error and type(error) is type(first) and where(error) == place:
            found.set_example(place, fewer, error)


def draw(strategy: st.SearchStrategy[Any], count: int, seed: int, use: Callable[[Any], None]) -> None:
    """Calls a function with `count` examples."""

    alone: Any = {"database": None, "deadline": None, "suppress_health_check": [*HealthCheck]}

    @seeded(seed)
    @settings(max_examples=count, phases=[Phase.generate], **alone)
    @given(strategy)
    def each(example: Any) -> None:
        use(example)

    each()


def probe_quickly() -> None:
    """Probes the spaces of this program's environments in this process, and those of others once."""
    specs: dict[str, EnvSpec] = {}

    def probe(env: EnvConfig, timeout_s: float = 60.0, is_timed: bool = False) -> EnvSpec:
        if env.env_id.startswith("fuzz_env:"):
            simulator = make_simulator(env, np.random.SeedSequence(0))
            simulator.close()
            return simulator.spec
        name = repr(env)
        if name not in specs:
            specs[name] = probe_spec(env, timeout_s)
        return specs[name]

    vars(resolve)["probe_spec"] = probe


def fuzz(options: Options) -> bool:
    """Runs all kinds; returns whether nothing has failed."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + LIMIT_BYTES, resource.RLIM_INFINITY))
    probe_quickly()
    kinds: dict[str, tuple[int, Any, Try]] = {
        "resolve": (options.resolve, fuzz_settings.runs(), resolve_run),
        "train": (options.train, fuzz_settings.runs(in_process=True), train_run),
        "texts": (options.texts, fuzz_texts.commands(), fuzz_texts.run_command),
    }
    found = {name: Found() for name in kinds}
    result = describe_run("fuzz", 1, options)
    start = time.monotonic()

    def write() -> None:
        seconds = round(time.monotonic() - start)
        write_json(options.json, result | {"seconds": seconds} | {name: each.as_dict() for name, each in found.items()})

    for index, (name, (count, strategy, trial)) in enumerate(kinds.items()):
        for seed in itertools.count((options.seed * len(kinds) + index) * 10**6):
            # Refused runs do not count as trained.
            if (found[name].passed if name == "train" else found[name].num_examples) >= count:
                break
            draw(strategy, min(PART, count), seed, partial(found[name].try_example, trial))
            write()
            print(f"{name:8} {found[name].summary}", flush=True)
    for name, (_, _, trial) in kinds.items():
        for place, failure in found[name].failures.items():
            if name != "texts":
                shorten(trial, found[name], place)
            print(f"\n{name}: {place}, {failure['count']} times: {failure['message']}\n    {failure['example']}")
    write()
    return not any(each.failures for each in found.values())


def main() -> int:
    options = parse(__doc__, Options)
    torch.set_num_threads(1)
    return 0 if fuzz(options) else 1


if __name__ == "__main__":
    sys.exit(main())
