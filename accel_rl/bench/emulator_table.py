"""Works out the ratios of the benchmark of emulators, and prints its tables."""

import statistics
from collections.abc import Sequence
from typing import Any

from accel_rl.bench.emulator_contestants import DRAWN
from accel_rl.bench.timing import Turns, format_ratio, ratio

Row = dict[str, Any]
TITLES = {
    "raw": "frames/s on one core",
    "steps": "steps/s of 16 environments on one core, frames of {frames}",
    "vector": "steps/s on all cores, random actions, frames of {frames}",
    "sampler": "steps/s on all cores, 16 environments per core, frames of {frames}",
}
# What the project wants at least: of the geometric mean, and of the worst game
TARGETS = {
    "undrawn / ale": (1.3, 1.1),
    "every-4th / ale": (1.2, None),
    "native / ale": (1.4, 1.15),
    "sampler / best peer": (None, 1.1),
    "own / ale": (None, 1.2),
    "sampler / bare": (None, 0.9),
}
MOST_PYTHON_US = 3.0
MOST_OVER_TORCH = {"first start": 20.0, "later start": 0.5}


def contest_row(part: str, frames: str, game: str, turns: dict[str, Turns]) -> Row:
    """Returns a contest as a row of the JSON: rates in steps/s (`raw`: frames/s), and the ratios of interest.

    Of vector environments that were measured in sync and in async, the faster one counts."""

    def fastest(*kinds: str) -> str:
        names = [name for name in turns if name.removesuffix("-sync").removesuffix("-async") in kinds]
        return max(names, key=lambda name: turns[name].median)

    pairs = {}
    if part == "raw":
        pairs = {f"{name} / ale": (name, "ale") for name in DRAWN}
    elif part == "steps":
        pairs = {"native / ale": ("native", "ale")}
    elif part == "vector":
        pairs = {
            "sampler / best peer": ("sampler", fastest("ale", "envpool")),
            "own / ale": (fastest("own"), fastest("ale")),
        }
    elif part == "sampler":
        pairs = {"sampler / bare": ("sampler", "bare")}
    return {
        "part": part,
        "frames": frames,
        "game": game,
        "medians": {name: turn.median for name, turn in turns.items()},
        "rates": {name: turn.rates for name, turn in turns.items()},
        "ratios": {name: ratio(turns[above].rates, turns[below].rates) for name, (above, below) in pairs.items()},
    }


def summarize(rows: Sequence[Row]) -> list[Row]:
    """Returns, for each part, size of frames and ratio: the geometric mean over its games, and the worst game."""
    groups: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        for name, value in row["ratios"].items():
            groups.setdefault((row["part"], row["frames"], name), {})[row["game"]] = value["median"]
    return [
        {
            "part": part,
            "frames": frames,
            "ratio": name,
            "mean": statistics.geometric_mean(by_game.values()),
            "worst": min(by_game.values()),
            "worst_game": min(by_game, key=lambda game: by_game[game]),
        }
        for (part, frames, name), by_game in groups.items()
    ]


def show_contest(row: Row, with_header: bool) -> None:
    """Prints a contest as a line."""
    if with_header:
        print(f"\n{TITLES[row['part']].format(**row)}")
        print(" " * 18 + "".join(f"{name:>14}" for name in row["medians"]), end="")
        print("".join(f"{name:>25}" for name in row["ratios"]))
    print(f"{row['game']:18}" + "".join(f"{rate:14,.0f}" for rate in row["medians"].values()), end="")
    print("".join(f"{format_ratio(value):>25}" for value in row["ratios"].values()), flush=True)


def show_summary(summary: Sequence[Row], missing_peers: dict[str, str]) -> None:
    """Prints what `summarize` returns, beside what it should be at least."""
    if summary:
        print(f"\n{'':10}{'':10}{'':22}geometric mean      worst")
    for row in summary:
        mean_target, worst_target = TARGETS.get(row["ratio"], (None, None))
        mean = f"{row['mean']:.2f}{_at_least(mean_target)}"
        print(f"{row['part']:10}{row['frames']:10}{row['ratio']:22}{mean:20}", end="")
        print(f"{row['worst']:.2f}{_at_least(worst_target)}, {row['worst_game']}")
    for name, command in missing_peers.items():
        print(f"not installed: {name}; {command}")


def _at_least(target: float | None) -> str:
    return f" (>= {target:g})" if target else ""


def show_python(rows: Sequence[Row]) -> None:
    """Prints the Python time of a worker."""
    if rows:
        print(f"\nus of Python per environment and step (<= {MOST_PYTHON_US:g})  ", end="")
        print(", ".join(f"{row['game']} {statistics.median(row['us_per_step']):.2f}" for row in rows))


def show_starts(starts: Row | None) -> None:
    """Prints what `run_starts` returns."""
    if not starts:
        return
    print(f"\nimport torch {statistics.median(starts['seconds']['import torch']):.2f} s")
    for name, most in MOST_OVER_TORCH.items():
        print(f"{name} / import torch {format_ratio(starts['ratios'][name])}, at most {most:g}")
    print(f"memory of a process: {starts['own_mb']:.0f} MB of its own", end="; ")
    print(f"{starts['resident_mb']:.0f} MB with pages of files, which all processes share")
    print(f"memory of an environment: {starts['state_bytes'] / 1024:.1f} KB without pictures")
