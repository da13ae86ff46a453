"""Measures the project's own Atari emulator beside ale-py's and other vector environments, on the same cores.

    accel-rl bench emulator [--games pong ...] [--parts raw ...] [--full] [--json FILE] [--figure FILE.png]

    raw        one core, frames/s without any preprocessing: `ale` is ale-py's `act`, which draws every frame; the
               others are accel_rl.emulator, drawing none, every fourth and every frame
    steps      one core, agent steps/s with frame skip and preprocessing, at half size (104x80) and 84x84:
               16 environments of the simulators `native` and `ale` of this package
    vector     all cores, steps/s of --num-envs environments with random actions: our sampler; our AtariVectorEnv
               (`own`); ale-py's and EnvPool, each with as many threads as cores (`sync`, or `async`: half of the
               environments at a time)
    sampler    all cores: our sampler with random actions beside bare processes with the same simulator, 16 environments
               per core
    python     microseconds per environment and step that a worker spends in Python: all but compiled calls
    starts     how long the emulator takes to start, and its memory (emulator_starts.py)

All contestants of a contest take turns. Ratios are medians over the rounds with 95 % intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accel_rl.bench.bare import bare_steps
from accel_rl.bench.contestants import SamplerContestant
from accel_rl.bench.emulator_contestants import python_us_per_step, raw_builders
from accel_rl.bench.emulator_starts import run_starts
from accel_rl.bench.emulator_table import contest_row, show_contest, show_python, show_starts, show_summary, summarize
from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.options import EmulatorOptions
from accel_rl.bench.output import create_parents, describe_run, figure_path, first_cores, write_json
from accel_rl.bench.peers import own_builders, peer_builders
from accel_rl.bench.timing import Builder, Repeated, compare, make_schedule
from accel_rl.emulator import BatchAtari
from accel_rl.emulator.machine_code import check_numba
from accel_rl.envs import EnvConfig, EnvSpec, make_simulator
from accel_rl.envs.atari import PRESETS, games
from accel_rl.errors import unknown
from accel_rl.hardware.description import format_machine
from accel_rl.hardware.placement import default_workers, pinned
from accel_rl.samplers.base import SamplerConfig

VERSION = 2  # of the JSON
TEN_GAMES = (
    *("pong", "breakout", "seaquest", "space_invaders", "qbert"),
    *("ms_pacman", "beam_rider", "enduro", "montezuma_revenge", "asteroids"),
)
THREE_GAMES = TEN_GAMES[:3]
ENVS_PER_CORE = 16
HORIZON = 64
PYTHON_ROLLOUTS = 10
DEFAULT_FIGURE = Path("results/emulator.png")

Row = dict[str, Any]


@dataclass(frozen=True)
class ContestKind:
    """How contests of one kind run: on which games, with which presets' frames (without --full the first num_default of
    these), on one core or all, with turns of how many times --seconds, and in how much of the default's 4 minutes."""

    games: Sequence[str]
    presets: Sequence[str]
    num_default: int
    all_cores: bool
    turns: float
    budget_s: float


CONTESTS = {
    "raw": ContestKind(TEN_GAMES, ["stooke"], 1, False, 1, 30),
    "steps": ContestKind(TEN_GAMES, ["stooke", "dqn84"], 2, False, 1, 85),
    "vector": ContestKind(THREE_GAMES, ["dqn84", "stooke"], 1, True, 3, 60),
    "sampler": ContestKind(THREE_GAMES, ["stooke"], 1, True, 3, 25),
}


class EmulatorBenchmark:
    """Measures the chosen parts.

    Raises UsageError for an unknown game, for cores that this process may not use, for environments that do not divide
    among groups and workers, and if Numba is missing."""

    def __init__(self, options: EmulatorOptions):
        for game in options.games or ():
            if game not in games():
                raise unknown("game", game, games(), "(`accel-rl list envs`)")
        check_numba()
        self.options = options
        self.cores = first_cores(options.cores)
        self.all_cpus = tuple(cpu for core in self.cores for cpu in core)
        self._vector_config = self._sampler_config(options.num_envs)
        BatchAtari("pong", 1)  # compiles what is not compiled yet, before any time is measured

    def _sampler_config(self, num_envs: int) -> SamplerConfig:
        return SamplerConfig(num_envs, HORIZON, default_workers(num_envs, len(self.all_cpus)))

    def contests(self, name: str) -> list[Row]:
        """Runs a part's contests, prints each, and returns them as rows of the JSON."""
        part, options = CONTESTS[name], self.options
        chosen = options.games or part.games
        presets = part.presets if options.full else part.presets[: part.num_default]
        budget_s = part.budget_s / (len(presets) * len(chosen))
        schedule = make_schedule(options.seconds * part.turns, options.rounds, options.full, budget_s)
        schedule = replace(schedule, building_counts=True)
        rows: list[Row] = []
        for preset in presets:
            frames = "" if name == "raw" else "x".join(map(str, PRESETS[preset].frame_shape))
            for index, game in enumerate(chosen):
                with pinned(self.all_cpus if part.all_cores else self.all_cpus[:1]):
                    turns = compare(self._builders(name, EnvConfig(game, preset)), schedule, f"{name}, {game}")
                rows.append(contest_row(name, frames, game, turns))
                show_contest(rows[-1], with_header=index == 0)
        return rows

    def _builders(self, part: str, env: EnvConfig) -> Sequence[Builder]:
        if part == "raw":
            return raw_builders(env.env_id)
        ale, native = replace(env, simulator="ale"), replace(env, simulator="native")
        if part == "steps":
            return [
                lambda: Repeated("ale", bare_steps(ale, ENVS_PER_CORE)),
                lambda: Repeated("native", bare_steps(native, ENVS_PER_CORE)),
            ]
        if part == "vector":
            peers = peer_builders(env, self.options.num_envs)[0] | own_builders(env, self.options.num_envs)
            del peers["gymnasium-async"]  # it has no simulator of its own
            return [partial(sampler_contestant, native, self._vector_config), *peers.values()]
        num_envs, cpus = ENVS_PER_CORE * len(self.cores), [core[0] for core in self.cores]
        return [
            partial(SimulationLimit, native, num_envs, cpus, "bare"),
            partial(sampler_contestant, native, self._sampler_config(num_envs)),
        ]

    def python(self) -> list[Row]:
        """Returns, for each game, the Python time of a worker with 16 native environments."""
        rows = []
        with pinned(self.all_cpus[:1]):
            for game in self.options.games or THREE_GAMES:
                env = EnvConfig(game, simulator="native")
                us = python_us_per_step(env, env_spec(env), ENVS_PER_CORE, PYTHON_ROLLOUTS, HORIZON)
                rows.append({"game": game, "us_per_step": us})
        return rows


def sampler_contestant(env: EnvConfig, config: SamplerConfig) -> SamplerContestant:
    """Returns our sampler with random actions."""
    return SamplerContestant("sampler", env, env_spec(env), config, None)


def env_spec(env: EnvConfig) -> EnvSpec:
    """Returns the observations and actions of an environment."""
    return make_simulator(env, np.random.SeedSequence(0)).spec


def run(options: EmulatorOptions) -> Row:
    """Runs the whole benchmark, prints its tables and writes its files; returns what the JSON holds."""
    figure = figure_path(options.figure, DEFAULT_FIGURE)
    benchmark = EmulatorBenchmark(options)
    create_parents(options.json, figure)
    parts = options.chosen_parts
    result = describe_run("emulator", VERSION, options)
    result["missing_peers"] = peer_builders(EnvConfig("pong"), options.num_envs)[1] if "vector" in parts else {}
    print(format_machine(result["machine"]))
    result["contests"] = [row for name in CONTESTS if name in parts for row in benchmark.contests(name)]
    result["summary"] = summarize(result["contests"])
    show_summary(result["summary"], result["missing_peers"])
    result["python"] = benchmark.python() if "python" in parts else []
    show_python(result["python"])
    result["starts"] = run_starts() if "starts" in parts else None
    show_starts(result["starts"])
    write_json(options.json, result)
    if figure and result["contests"]:
        from accel_rl.bench.emulator_figure import draw_emulator

        draw_emulator(result, figure)
        print(f"figure          {figure}")
    return result
