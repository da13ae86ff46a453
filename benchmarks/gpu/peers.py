"""Measures our training and Stable-Baselines3's in turns on Pong, with the networks on the GPU.

It works offline. It looks for Stable-Baselines3 and EnvPool in .peers, which `training_throughput.py --install-peers`
makes (EnvPool: `.peers/stable-baselines3/bin/pip install envpool`). Without .peers, it looks where this Python finds
packages: `pip install --target FOLDER` installs them to a folder for PYTHONPATH; docs/gpu.md lists them. A row says
what is not installed.

Contests, under the rules of training_throughput.py. Rates are agent steps per second:

    ppo      8 environments x 128 steps, 4 epochs of 4 minibatches; ours also with 112 environments x 16 steps
    a2c      16 environments x 5 steps; ours also with 112 environments
    dqn      32 environments x 4 steps, batches of 32, each sample 8 times

Ours computes in TF32, as PyTorch's own convolutions do by default, and in bfloat16. The table shows the steps per
update and the parameters (without a target network); with the peers' sizes, both must equal theirs. A contestant that
fails has a row that says so, and the others continue.
"""

import math
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accel_rl.bench.timing import FULL_ROUNDS, Schedule, Shares, Turns, alternate, ratio
from accel_rl.errors import RunError
from accel_rl.hardware.description import describe_machine, format_machine
from gpu.rows import Row, Rows, describe_error
from gpu.runs import ROOT
from gpu.speed import small
from peer_environments import python_of
from peer_process import PeerProcess, driver_command
from training_contestants import Training
from training_contests import CONTESTS, Contest, driver_settings

CONTEST_NAMES = ("ppo", "a2c", "dqn")
# Sizes that suit a GPU, instead of the peers': 112 environments, as in speed.py.
LARGE: dict[str, Row] = {"ppo": {"envs": 112, "horizon": 16}, "a2c": {"envs": 112}}
SB3 = {"SB3, processes": "subproc", "SB3, EnvPool": "envpool"}
REAL, DRY = Schedule(1.0, FULL_ROUNDS), Schedule(0.05, 2)  # seconds per turn, rounds


class Guarded:
    """A contestant whose failure does not end the contest: its rates are NaN from then on.

    build: creates it. failure: its row's text in place of figures; empty while it takes part."""

    def __init__(self, name: str, build: Callable[[], Training | PeerProcess]):
        self.name = name
        self.shares: Shares = {}
        self.failure: Row = {}
        self.contestant: Any = self._try(build)

    def run(self, seconds: float) -> float:
        rate = None if self.failure else self._try(self.contestant.run, seconds)
        return math.nan if rate is None else rate

    def close(self) -> None:
        if self.contestant:
            self._try(self.contestant.close)

    def _try(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except Exception as error:
            traceback.print_exc()
            self.failure = explain(error)
            return None


def explain(error: Exception) -> Row:
    """Returns a row's text for a failure. A package that a peer's process does not find is not a failure."""
    if not isinstance(error, RunError):
        return describe_error(error)
    *_, last_line = str(error).splitlines()
    missing = re.search(r"No module named '([\w.]+)'", last_line)
    return (
        {"text": f"not installed: {missing[1]}"}
        if missing
        else {"error": f"{error.args[0].split(';')[0]}; {last_line}"}
    )


def peers(rows: Rows) -> None:
    """Runs the contests one after the other."""
    rows.add("machine", lambda: {"text": format_machine(describe_machine())})
    for name in CONTEST_NAMES:
        hold(name, CONTESTS[name], rows)


def hold(name: str, contest: Contest, rows: Rows) -> None:
    """Runs a contest. Each contestant has a row from the first round on."""
    with ExitStack() as stack:
        contestants = [
            stack.enter_context(closing(Guarded(label, build)))
            for label, build in builders(name, contest.settings, rows.is_dry).items()
        ]

        def put(turns: dict[str, Turns], is_complete: bool = False) -> None:
            for each in contestants:
                rows.put(
                    {"name": f"{name}: {each.name}", **describe(each, contestants, turns), "complete": is_complete}
                )

        schedule = DRY if rows.is_dry else replace(REAL, budget_s=contest.budget_s)
        put(alternate(contestants, schedule, name, on_round=put), is_complete=True)


def builders(name: str, settings: Row, is_dry: bool) -> dict[str, Callable[[], Training | PeerProcess]]:
    """Returns the function that builds each contestant, by the name of its row."""
    settings = {**settings, "env": "pong", "device": "cuda:0"}
    sizes = {"ours": settings}
    if name in LARGE:
        sizes[f"ours, {LARGE[name]['envs']} environments"] = settings | LARGE[name]
    dry: Row = {**small(settings), "frame_shape": [84, 84]} if is_dry else {}  # peers have only these frames
    found: dict[str, Callable[[], Training | PeerProcess]] = {
        f"{label}, {precision}": partial(Training, label, {**size, **dry, "precision": setting})
        for label, size in sizes.items()
        for precision, setting in (("TF32", "tf32"), ("bfloat16", "bf16"))
    }
    python, environment = find_python()
    for label, vectorization in SB3.items():
        variant = {"algo": settings["algo"], "vectorization": vectorization, "device": "cpu" if is_dry else "cuda"}
        command = driver_command(python, "sb3", driver_settings(settings | dry, variant))
        found[label] = partial(PeerProcess, label, command, environment)
    return found


def find_python() -> tuple[Path, dict[str, str] | None]:
    """Returns the interpreter that has Stable-Baselines3, and its environment's variables (None: PeerProcess's own).

    It is the one in .peers, if it exists, or else this one, which uses PYTHONPATH. It never sees a fake GPU."""
    own = python_of(ROOT / ".peers", "stable-baselines3")
    if own.exists():
        return own, None
    return Path(sys.executable), {name: value for name, value in os.environ.items() if name != "ACCEL_RL_FAKE_GPUS"}


def describe(each: Guarded, contestants: list[Guarded], turns: dict[str, Turns]) -> Row:
    """Returns a contestant's figures, with the ratios of its rates to the peers'."""
    if each.failure:
        return each.failure
    rates, facts = turns[each.name].rates, each.contestant.facts
    interval = ratio(rates, [1.0] * len(rates))
    shown = ("peer", "optimizer", "envs", "horizon", "workers", "vectorization", "device")
    return {
        "steps_per_s": round(interval["median"]),
        "low": round(interval["low"]),
        "high": round(interval["high"]),
        "over": {
            peer.name: ratio(rates, turns[peer.name].rates)
            for peer in contestants
            if peer.name in SB3 and not peer.failure
        },
        "steps_per_update": each.contestant.steps / max(each.contestant.updates, 1),
        "parameters": facts["parameters"],
        "text": ", ".join(f"{name} {facts[name]}" for name in shown if name in facts),
        "rates": rates,
    }


PARTS = {"peers": peers}
