"""Counts PyTorch's operations in one update and in one act of small networks on a CPU, without a compiler.

python benchmarks/operations.py [--runs CartPole-v1:ppo ...] [--rollouts 20] [--json FILE]

Three numbers for each:

    operations  those that PyTorch dispatches below autograd; a compiled update consists of these
    kernels     operations that read or write numbers, that is, all but views
    calls       the outermost aten ranges of PyTorch's profiler: operations as Python and autograd call them

An update lasts from the end of one optimizer step to the next in the same rollout, so the algorithm must make several.
Times are medians over rollouts: that of learning per update, and that of an act for half of the environments.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.errors import UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import check
from accel_rl.tune.training import Training
from accel_rl.tune.tuning import short_settings
from command_line import add_json, make_parser, run_program

VERSION = 1  # version of the JSON format
RUNS = ("CartPole-v1:ppo", "Pendulum-v1:ppo", "HalfCheetah-v5:ppo", "CartPole-v1:pqn", "CartPole-v1:dqn")
STEP = "optimizer step"  # the profiler's name of a range
NUM_ACTS = 1000
VIEWS = {
    *("alias", "as_strided", "detach", "expand", "lift_fresh", "permute", "select", "slice", "split", "squeeze", "t"),
    *("split_with_sizes", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view", "resolve_conj", "resolve_neg"),
}

Result = dict[str, Any]


@dataclass(frozen=True)
class OperationOptions:
    """Options of the benchmark. runs: as ENV:ALGO; rollouts: the number of timed ones."""

    runs: Sequence[str] = RUNS
    rollouts: int = 20
    json: Path | None = None

    def __post_init__(self) -> None:
        if self.rollouts < 1:
            raise UsageError(f"rollouts={self.rollouts} must be at least 1")


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that records the names of all operations, and where optimizer steps end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.ends: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function).split(".")[1])
        return function(*args, **kwargs or {})


def run(options: OperationOptions) -> Result:
    """Counts all runs, prints their table and writes the file, which keeps its other runs."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    before = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"runs": {}}
    result = {**describe_run("operations", VERSION, options), "runs": before["runs"]}
    print(f"{'':32}{'operations':>11}{'kernels':>9}{'calls':>7}{'us':>9}")
    for name in options.runs:
        result["runs"][name] = found = measure(name, options.rollouts)
        for part in ("update", "act"):
            counts = found[part]
            words = [f"{counts[key]:{width}}" for key, width in (("operations", 11), ("kernels", 9), ("calls", 7))]
            print(f"{name + ', ' + part:32}{''.join(words)}{counts['us']:9.1f}", flush=True)
    write_json(options.json, result)
    return result


def measure(name: str, num_rollouts: int) -> Result:
    """Counts and times the updates and acts of a run, ENV:ALGO."""
    env, _, algo = name.rpartition(":")
    serial = {"sampler": "serial", "compile": "never", "device": "cpu", "sampling_threads": 1, "learning_threads": 1}
    settings = {"env": env, "algo": algo, **serial}
    config = check(resolve(settings))
    config = check(resolve({**settings, **short_settings(config)}, spec=config.spec))
    with closing(Training(name, config)) as training:
        training.iterate_for(getattr(config.algo, "warmup_steps", 0) + config.run.envs * config.run.horizon + 1)
        update = count_update(training)
        update["us"] = 1e6 * statistics.median(update_seconds(training) for _ in range(num_rollouts))
        act = make_act(training)
        return {"update": update, "act": {**count(act), "us": time_act(act)}}


@contextmanager
def around_steps(training: Training, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replaces the update's optimizer step with wrap(optimizer step) inside a `with` block."""
    exchange = training._update.exchange
    apply = exchange.apply
    exchange.apply = wrap(apply)  # type: ignore[method-assign]
    try:
        yield
    finally:
        exchange.apply = apply  # type: ignore[method-assign]


def count_update(training: Training) -> Result:
    """Counts the operations of the second update of a rollout."""
    dispatched = Dispatched()

    def noting(apply: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with record_function(STEP):
                result = apply(*arguments)
            dispatched.ends.append(len(dispatched.names))
            return result

        return run

    with around_steps(training, noting):
        with dispatched:
            training.iterate()
        if len(dispatched.ends) < 2:
            raise UsageError(f"{training.name} makes fewer than two updates from a rollout, so none can be counted")
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            training.iterate()
    names = dispatched.names[slice(*dispatched.ends[:2])]
    first, second = [event.time_range.end for event in events_of(profiled) if event.name == STEP][:2]
    calls = [event for event in outermost(profiled) if first < event.time_range.start < second]
    return summary(names, calls)


def count(function: Callable[[], Any]) -> Result:
    """Counts the operations of a function."""
    with Dispatched() as dispatched:
        function()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        function()
    return summary(dispatched.names, outermost(profiled))


def outermost(profiled: profile) -> list[Any]:
    """Returns the events of PyTorch's operations that no other operation has called."""

    def has_caller(event: Any) -> bool:
        parent = event.cpu_parent
        return parent is not None and (parent.name.startswith("aten::") or has_caller(parent))

    return [event for event in events_of(profiled) if event.name.startswith("aten::") and not has_caller(event)]


def events_of(profiled: profile) -> list[Any]:
    return [*profiled.events()]  # type: ignore[no-untyped-call]


def summary(names: Sequence[str], calls: Sequence[Any]) -> Result:
    kernels = sum(name not in VIEWS for name in names)
    return {
        "operations": len(names),
        "kernels": kernels,
        "calls": len(calls),
        "names": dict(Counter(names).most_common()),
    }


def update_seconds(training: Training) -> float:
    """Returns the seconds of learning per update in one iteration."""
    num_updates = 0

    def counting(apply: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal num_updates
            num_updates += 1
            return apply(*arguments)

        return run

    with around_steps(training, counting):
        result = training.iteration.collect_and_learn(training.total_steps)
    training.count(result.rollout)
    return result.learn_s / num_updates


def make_act(training: Training) -> Callable[[], Any]:
    """Returns a function that acts in half of the environments."""
    policy, rollout = training.algo.policy, training.iteration.collect_and_learn(training.total_steps).rollout
    num_envs = rollout.num_envs // 2
    observation = rollout.observations(0, 1)[0, :num_envs].clone()
    noise = policy.draw_noise(1, rollout.num_envs, torch.Generator())[0, :num_envs]
    return lambda: policy.act(observation, noise)


def time_act(act: Callable[[], Any]) -> float:
    """Returns the microseconds of an act."""
    seconds = []
    for _ in range(NUM_ACTS):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="ENV:ALGO", help=f"({' '.join(RUNS)})")
    parser.add_argument("--rollouts", type=int, default=20, metavar="N", help="timed rollouts (20)")
    add_json(parser)
    run(OperationOptions(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(run_program(main))
