"""Counts how far the consoles of a GPU's warp diverge: simulates warps from instruction traces, without a GPU.

python benchmarks/emulator_divergence.py [--games pong ...] [--consoles 1024] [--json FILE]

A warp of 32 lanes executes one console of a game in each lane, in lock-step. The consoles are in the middle of games,
with different random actions. The program simulates a frame that is not painted with different models of the
interpreter's loop (warps.py). For each model, the table has the means over the games:

    issued      instructions that a warp issues per instruction of each console, counted as bodies of the switch's
                cases: from 1 (all lanes always do the same) to 32 (one after another)
    (least, most)    the range of `issued` over the games
    lanes       how many lanes do something useful: 32 / issued
    cost        the same as `issued`, weighted with the cost of each part of the interpreter
    per frame   LLVM IR instructions that warps execute for a frame of one console
    completed   the share of them that completes lines of the picture: masks and collisions
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

import warp_rounds
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.emulator.machine_code import check_numba
from accel_rl.emulator.registers import CLOCKS_PER_LINE
from accel_rl.envs.games.atari import games
from accel_rl.errors import UsageError
from command_line import add_json, check_names, make_parser, run_program
from instruction_traces import Traces, record
from warp_rounds import LARGEST, LOWEST
from warps import COSTS, LANES, Model, simulate

VERSION = 1  # version of the JSON format
TEN_GAMES = ["pong", "breakout", "space_invaders", "seaquest", "qbert", "ms_pacman", "beam_rider", "enduro"]
TEN_GAMES += ["montezuma_revenge", "asterix"]
FRAMES = 2  # frames to record; the last one is simulated
LINE = CLOCKS_PER_LINE
MODELS = {
    "frame, opcode": Model("opcode"),
    "frame, cpu": Model("cpu"),
    "frame, mode": Model("mode"),
    "line, opcode": Model("opcode", LINE),
    "line, cpu": Model("cpu", LINE),
    "line, mode": Model("mode", LINE),
    # Variants of "line, cpu", unless their names say otherwise
    "half a line": Model("cpu", LINE // 2),
    "two lines": Model("cpu", 2 * LINE),
    "eight lines": Model("cpu", 8 * LINE),
    "complete after the switch": Model("cpu", LINE, quorum=1),
    "complete when 8 wait": Model("cpu", LINE, quorum=8),
    "complete when all wait": Model("cpu", LINE, quorum=LANES),
    "complete each line": Model("cpu", LINE, finishes=True),
    "largest case": Model("cpu", LINE, LARGEST),
    "lowest address": Model("cpu", LINE, LOWEST),
    "warps by start": Model("cpu", LINE, order="start"),
    "warps by count": Model("cpu", LINE, order="count"),
    "warps by trace": Model("cpu", LINE, order="trace"),
    "warps by own trace": Model("cpu", LINE, order="own"),
    "frame, warps by count": Model("cpu", order="count"),
    "opcode, each line, count": Model("opcode", LINE, finishes=True, order="count"),
    "16 lanes": Model("cpu", LINE, lanes=16),
    "8 lanes": Model("cpu", LINE, lanes=8),
    "4 lanes": Model("cpu", LINE, lanes=4),
    "1 lane": Model("cpu", LINE, lanes=1),
}

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DivergenceOptions:
    """Options of the program. Raises UsageError for a value out of range."""

    games: Sequence[str] = tuple(TEN_GAMES)
    consoles: int = 1024
    seed: int = 1
    json: Path | None = None

    def __post_init__(self) -> None:
        check_names("game", self.games, games())
        if self.consoles < 2 * LANES:
            raise UsageError(f"consoles={self.consoles} must be at least {2 * LANES}, two warps")


def run(options: DivergenceOptions) -> Row:
    """Simulates all models in each game, prints the table and writes the file; returns the contents of the JSON."""
    check_numba()
    create_parents(options.json)
    rows = []
    for game in options.games:
        traces = record(game, options.consoles, FRAMES, options.seed)
        rows.append({"game": game, "skipped": traces.skipped, **measure(traces)})
        models = rows[-1]["models"]
        issued = ", ".join(f"{name} {models[name]['issued']:.2f}" for name in list(MODELS)[:6])
        count, skipped = rows[-1]["instructions"], rows[-1]["skipped"]
        print(f"{game:18} {count:5.0f} instructions ({skipped:.0%} more skipped), issued: {issued}", flush=True)
    print_means(rows)
    result = describe_run("emulator_divergence", VERSION, options)
    result |= {"costs": COSTS.tolist(), "models": {name: asdict(model) for name, model in MODELS.items()}}
    write_json(options.json, result | {"contests": rows})
    return result | {"contests": rows}


def measure(traces: Traces) -> Row:
    """Returns a game's figures: instructions of a frame, and those of each model."""
    frame, models = FRAMES - 1, {}
    for name, model in MODELS.items():
        totals = simulate(traces, frame, model)
        lanes, consoles = model.lanes, len(traces.codes) // model.lanes * model.lanes
        figures = {
            "issued": lanes * totals[warp_rounds.BODIES] / totals[warp_rounds.LONE_BODIES],
            "cost": lanes * totals[warp_rounds.COST] / totals[warp_rounds.LONE_COST],
            "per_frame": totals[warp_rounds.COST] / consoles,
            "rounds": lanes * totals[warp_rounds.ROUNDS] / totals[warp_rounds.DONE],
            "completions_of_a_warp": lanes * totals[warp_rounds.COMPLETIONS] / consoles,
            "completed": totals[warp_rounds.COMPLETION_COST] / totals[warp_rounds.COST],
        }
        models[name] = {figure: round(float(value), 4) for figure, value in figures.items()}
    return {"instructions": float(np.diff(traces.frames, axis=1)[:, frame].mean()), "models": models}


def print_means(rows: list[Row]) -> None:
    """Prints the means over the games, geometric except for shares."""
    print(f"\n{'':26}  issued (least, most)   lanes  cost  per frame  completed")
    for name, model in MODELS.items():
        figures = [row["models"][name] for row in rows]
        issued, cost, per_frame = ([figure[key] for figure in figures] for key in ("issued", "cost", "per_frame"))
        mean = geometric_mean(issued)
        print(
            f"{name:26}  {mean:6.2f} ({min(issued):5.2f}, {max(issued):5.2f})  {model.lanes / mean:6.1f} "
            f"{geometric_mean(cost):5.2f}  {geometric_mean(per_frame):9,.0f}  "
            f"{fmean(figure['completed'] for figure in figures):9.0%}"
        )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--games", nargs="+", default=TEN_GAMES, metavar="GAME", help="as ale-py names them (ten)")
    parser.add_argument("--consoles", type=int, default=1024, metavar="N", help="consoles of each game (1024)")
    parser.add_argument("--seed", type=int, default=1, help="seed of starts and actions (1)")
    add_json(parser)
    run(DivergenceOptions(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(run_program(main))
