"""Compares the speed of our Atari emulator with that of ale-py and of other vector environments, on the same cores.

python benchmarks/emulator.py [--parts raw ...] [--games pong ...] [--full] [--json FILE]

    raw      one core, frames/s without any preprocessing: `ale` is ale-py's `act`, which draws every frame; the others
             are accel_rl.emulator, which draws no frame, every fourth, or every one
    steps    one core, agent steps/s with frame skip and preprocessing, at half size (104x80) and 84x84: 16 environments
             of the simulators `native` and `ale`
    vector   all cores, steps/s of 32 environments with random actions, 84x84 (--full: also half size): our
             AtariVectorEnv (`own`), ale-py's and EnvPool, each with as many threads as cores (`sync`, or `async`: half
             of the environments at a time). sampling_peers.py compares our sampler with them

The contestants of a game take turns. The table has each one's rate, and the median over the rounds of its ratio to
ale-py (`vector`: to the faster of ale-py's two). The last line is the geometric mean over the games.
"""

import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ale_py
import numpy as np

from accel_rl.bench.limit import bare_steps
from accel_rl.bench.options import option
from accel_rl.bench.output import describe_run, write_json
from accel_rl.bench.timing import Builder, Repeated, compare, ratio
from accel_rl.emulator import BatchAtari
from accel_rl.emulator.machine_code import check_numba
from accel_rl.envs import EnvConfig
from accel_rl.envs.games.atari import games
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.placement import pinned
from accel_rl.hardware.topology import available_cpus
from command_line import TurnOptions, check_names, parse, run_program, seconds_option
from sampling_peers import AtariVector, peer_builders

VERSION = 3  # version of the JSON format
TEN_GAMES = ["pong", "breakout", "seaquest", "space_invaders", "qbert", "ms_pacman", "beam_rider", "enduro"]
TEN_GAMES += ["montezuma_revenge", "asteroids"]
PARTS = {"raw": TEN_GAMES, "steps": TEN_GAMES, "vector": TEN_GAMES[:3]}
BUDGET_S = {"raw": 40.0, "steps": 100.0, "vector": 60.0}  # without --full and --rounds, and without building
DRAWN = {"ale": 1, "undrawn": 0, "every-4th": 4, "every": 1}  # one frame in this many is drawn; 0: none
ENVS_ON_ONE_CORE, ENVS = 16, 32  # environments in the parts steps and vector
FRAMES_AT_ONCE, HELD_FRAMES = 200, 4  # frames per call; frames per action

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EmulatorOptions(TurnOptions):
    """Options of the benchmark. Raises UsageError for a value out of range."""

    seconds: float = seconds_option(0.1)
    parts: Sequence[str] = option(tuple(PARTS), f"{', '.join(PARTS)} (all)", nargs="+", metavar="PART")
    games: Sequence[str] | None = option(None, "as ale-py names them (ten; vector: three)", nargs="+", metavar="GAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("part", self.parts, PARTS)
        check_names("game", self.games or (), games())


def run(options: EmulatorOptions) -> Row:
    """Measures the chosen parts, prints their tables and writes the file; returns the contents of the JSON."""
    check_numba()
    BatchAtari("pong", 1)  # compiles the emulator if needed, before any time is measured
    print(format_machine(describe_machine()))
    rows = [row for part in options.parts for row in measure(part, options)]
    result = describe_run("emulator", VERSION, options) | {"contests": rows}
    write_json(options.json, result)
    return result


def measure(part: str, options: EmulatorOptions) -> list[Row]:
    """Lets the contestants of each game take turns, prints a line for each game, and returns its rows."""
    presets = {"raw": ["stooke"], "steps": ["stooke", "dqn84"], "vector": ["dqn84", "stooke"][: 1 + options.full]}[part]
    chosen, cpus = options.games or PARTS[part], available_cpus()
    rows: list[Row] = []
    for preset in presets:
        print(f"\n{part}, preset {preset}")
        for game in chosen:
            with pinned(tuple(cpus) if part == "vector" else tuple(cpus[:1])):
                schedule = options.schedule(BUDGET_S[part] / (len(presets) * len(chosen)))
                builders = contestants(part, EnvConfig(game, preset))
                turns = compare(builders, schedule, f"{part}, {game}")
            rates = {name: turn.rates for name, turn in turns.items()}
            peer = max((name for name in turns if name.startswith("ale")), key=lambda name: turns[name].median)
            ratios = {name: ratio(rates[name], rates[peer]) for name in rates}
            rows.append({"part": part, "preset": preset, "game": game, "rates": rates, "ratios": ratios})
            figures = (f"{name} {turn.median:,.0f} ({ratios[name]['median']:.2f})" for name, turn in turns.items())
            print(f"{game:18}" + ", ".join(figures), flush=True)
        found = [row["ratios"] for row in rows if row["preset"] == preset]
        means = {name: statistics.geometric_mean(ratios[name]["median"] for ratios in found) for name in found[0]}
        print("geometric mean    " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()))
    return rows


def contestants(part: str, env: EnvConfig) -> list[Builder]:
    """Returns the functions that build the contestants of a game."""
    if part == "raw":
        return [partial(frames, name, env.env_id, draw_every) for name, draw_every in DRAWN.items()]
    if part == "steps":
        return [partial(steps, replace(env, simulator=name)) for name in ("ale", "native")]
    peers = peer_builders(env, ENVS)[0]
    del peers["gymnasium-async"]  # it has no simulator of its own
    sizes = {"own-sync": ENVS, "own-async": ENVS // 2}
    own = [partial(AtariVector, name, env, ENVS, size, "accel_rl.emulator") for name, size in sizes.items()]
    return [*own, *peers.values()]


def steps(env: EnvConfig) -> Repeated:
    return Repeated(env.simulator, bare_steps(env, ENVS_ON_ONE_CORE))


def frames(name: str, game: str, draw_every: int) -> Repeated:
    """Returns an emulator that plays random actions: ale-py's `act` (name: "ale"), or ours."""
    actions, action_of_env = random_actions(BatchAtari(game, 1).actions), np.zeros(1, np.int32)
    atari, ale = BatchAtari(game, 1, seed=1, full_action_space=True), ale_py.ALEInterface()
    atari.reset()
    ale.setInt("random_seed", 1)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(Path(str(ale_py.roms.get_rom_path(game))))

    def play_ale() -> int:
        for action in itertools.islice(actions, FRAMES_AT_ONCE):
            ale.act(action)
            if ale.game_over():
                ale.reset_game()
        return FRAMES_AT_ONCE

    def play_ours() -> int:
        for frame, action in enumerate(itertools.islice(actions, FRAMES_AT_ONCE)):
            action_of_env[0] = action
            if atari.step(action_of_env, draw=draw_every > 0 and frame % draw_every == 0).ends.any():
                atari.reset()
        return FRAMES_AT_ONCE

    return Repeated(name, play_ale if name == "ale" else play_ours)


def random_actions(actions: Sequence[int]) -> Iterator[int]:
    """Yields the same random actions for every contestant, each for HELD_FRAMES frames."""
    rng = np.random.default_rng(1)
    while True:
        for action in rng.choice(actions, 1000).tolist():
            yield from (action,) * HELD_FRAMES


def main() -> None:
    run(parse(__doc__, EmulatorOptions))


if __name__ == "__main__":
    sys.exit(run_program(main))
