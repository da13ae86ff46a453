"""Measures the emulator's speed beside ale-py's, on one core.

python benchmarks/emulator.py [--games pong breakout ...] [--full] [--json FILE]

    act          ale-py: one raw frame, which it always draws
    unseen       accel_rl.emulator: one raw frame, not drawn
    every-4th    the same, every fourth frame drawn
    every        the same, every frame drawn

All play the same random actions. Contestants alternate; ratios are medians over the rounds with 95 % intervals. Before
that, new processes start the emulator with an empty cache and with a filled one, and import torch, in turns.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ale_py
import numpy as np

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Repeated, alternate, format_ratio, ratio
from accel_rl.emulator import BatchAtari
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.hardware.description import describe_machine, format_machine
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program

VERSION = 1  # of the JSON
GAMES = (
    "pong",
    "breakout",
    "seaquest",
    "space_invaders",
    "qbert",
    "ms_pacman",
    "beam_rider",
    "enduro",
    "montezuma_revenge",
    "asteroids",
)
CONTESTANTS = {"unseen": 0, "every-4th": 4, "every": 1}  # draws every so many frames; 0: none
TARGETS = {"unseen": 1.3, "every-4th": 1.2}  # of the geometric mean over the games
WORST_TARGET = 1.1  # of `unseen`
START_TARGETS = {"first start": 20.0, "later start": 0.5}  # at most, over importing torch
MAX_MB = 40.0  # target: what a process needs of its own, but for the state and the pictures
STARTS = 5
FRAMES_AT_ONCE = 200
BUDGET_S = 20.0  # of each game

Result = dict[str, Any]

IMPORT_TORCH = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"
START = """
import time
import numpy as np
import psutil
import accel_rl.emulator
def mb(kind): return sum(getattr(each, kind) for each in psutil.Process().memory_maps()) / 2**20
before, start = [mb(kind) for kind in ("private_dirty", "rss")], time.perf_counter()
atari = accel_rl.emulator.BatchAtari("pong", 1)
print(time.perf_counter() - start, mb("private_dirty") - before[0], mb("rss") - before[1])
"""


@dataclass(frozen=True)
class EmulatorOptions(TurnOptions):
    """Options of the benchmark. games: names as in ale-py."""

    games: tuple[str, ...] = GAMES


class AlePlayer:
    """Plays with ale-py."""

    def __init__(self, game: str, actions: Iterator[int]):
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", 1)
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.loadROM(Path(str(ale_py.roms.get_rom_path(game))))
        self._actions = actions

    def play(self) -> int:
        for _ in range(FRAMES_AT_ONCE):
            self._ale.act(next(self._actions))
            if self._ale.game_over():
                self._ale.reset_game()
        return FRAMES_AT_ONCE


class Player:
    """Plays with the project's emulator, and draws every so many frames."""

    def __init__(self, game: str, actions: Iterator[int], draw_every: int):
        self._atari = BatchAtari(game, 1, seed=1, full_action_space=True)
        self._atari.reset()
        self._actions, self._draw_every = actions, draw_every

    def play(self) -> int:
        chosen = np.zeros(1, np.int32)
        for frame in range(FRAMES_AT_ONCE):
            chosen[0] = next(self._actions)
            arrays = self._atari.step(chosen, draw=self._draw_every > 0 and frame % self._draw_every == 0)
            if arrays.ends.any():
                self._atari.reset()
        return FRAMES_AT_ONCE


def random_actions(actions: tuple[int, ...]) -> Iterator[int]:
    """Yields random actions, each held for four frames."""
    rng = np.random.default_rng(1)
    while True:
        for action in rng.choice(actions, 1000).tolist():
            yield from (action,) * 4


def run(options: EmulatorOptions) -> Result:
    """Runs the benchmark, prints its table and writes its file; returns what the JSON holds."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    games = {}
    starts = run_starts()
    show_starts(starts)
    print(f"{'':20}{'ale-py':>10} frames/s" + "".join(f"{name + ' / act':>26}" for name in CONTESTANTS))
    for game in options.games:
        games[game] = run_game(game, options)
        ratios = "".join(f"{format_ratio(games[game]['ratios'][name]):>26}" for name in CONTESTANTS)
        print(f"{game:20}{games[game]['rates']['act']:10,.0f}         {ratios}", flush=True)
    means = {
        name: statistics.geometric_mean(game["ratios"][name]["median"] for game in games.values())
        for name in CONTESTANTS
    }
    worst = min(game["ratios"]["unseen"]["median"] for game in games.values())
    for name, mean in means.items():
        target = f", should be at least {TARGETS[name]}" if name in TARGETS else ""
        print(f"{name} / act: geometric mean {mean:.2f}{target}")
    print(f"unseen / act: worst {worst:.2f}, should be at least {WORST_TARGET}")
    result = {
        **describe_run("emulator", VERSION, options),
        "starts": starts,
        "games": games,
        "means": means,
        "worst": worst,
    }
    write_json(options.json, result)
    return result


def run_starts() -> Result:
    """Measures starts in seconds, and the memory of a process that has started the emulator in MB."""
    seconds: dict[str, list[float]] = {"import torch": [], "first start": [], "later start": []}
    memory = []
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as cache:
            seconds["import torch"].append(_measure(IMPORT_TORCH, cache)[0])
            seconds["first start"].append(_measure(START, cache)[0])
            later, *used = _measure(START, cache)
            seconds["later start"].append(later)
            memory.append(used)
    ratios = {name: ratio(seconds[name], seconds["import torch"]) for name in START_TARGETS}
    own_mb, resident_mb = map(statistics.median, zip(*memory, strict=True))
    measured = {"own_mb": own_mb, "resident_mb": resident_mb, "state_bytes": 4 * STATE_WORDS}
    return {"seconds": seconds, "ratios": ratios, **measured}


def _measure(code: str, cache: str) -> list[float]:
    """Runs a program in a new process with this folder for caches; returns the numbers that it prints."""
    printed = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "XDG_CACHE_HOME": cache})
    return [float(word) for word in printed.split()]


def show_starts(starts: Result) -> None:
    """Prints what `run_starts` returns."""
    print(f"import torch {statistics.median(starts['seconds']['import torch']):.2f} s")
    for name, most in START_TARGETS.items():
        print(f"{name} / import torch {format_ratio(starts['ratios'][name])}, should be at most {most}")
    print(f"memory of a process {starts['own_mb']:.0f} MB of its own, should be at most {MAX_MB:.0f}", end="; ")
    print(f"{starts['resident_mb']:.0f} MB with pages of files, which all processes share")
    print(f"memory of an environment {starts['state_bytes'] / 1024:.1f} KB without pictures, should be at most 12\n")


def run_game(game: str, options: EmulatorOptions) -> Result:
    """Compares the emulators on one game."""
    minimal = BatchAtari(game, 1).actions
    contestants = [Repeated("act", AlePlayer(game, random_actions(minimal)).play)]
    for name, draw_every in CONTESTANTS.items():
        contestants.append(Repeated(name, Player(game, random_actions(minimal), draw_every).play))
    turns = alternate(contestants, options.schedule(BUDGET_S), game)
    return {
        "rates": {name: turn.median for name, turn in turns.items()},
        "ratios": {name: ratio(turns[name].rates, turns["act"].rates) for name in CONTESTANTS},
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--games", nargs="+", default=GAMES, metavar="GAME", help="names as in ale-py (ten games)")
    add_turns(parser, seconds=0.25, budget="20 seconds a game")
    add_json(parser)
    given: dict[str, Any] = vars(parser.parse_args())
    games = tuple(given.pop("games"))
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return run_program(lambda: run(EmulatorOptions(**given, games=games)))


if __name__ == "__main__":
    sys.exit(main())
