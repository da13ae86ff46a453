"""Compares the scores of compiled and eager updates: all presets for vectors, on three tasks, with three seeds.

python benchmarks/compiled_scores.py [--tasks CartPole-v1 ...] [--presets NAME ...] [--seeds 1 2 3] [--table]
                                     [--json benchmarks/results/compiled_scores.json]

Run it from the repository's root; all presets take a day. Each run is one `accel-rl train` with `--compile always` or
with `--compile never`, and one `accel-rl eval` of the final policy over 20 games. Each run is added to the file when it
ends, and is not repeated later, so the program can be stopped and started at any time. Presets with equal settings
count as one. Presets that a task refuses, or whose updates are not compiled, are noted and left out. At the end the
program prints the mean scores with their intervals over seeds (--table: nothing else).
"""

import csv
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from accel_rl.analysis.scores import Interval, interval, mean_of_means
from accel_rl.bench.output import write_json
from accel_rl.config.presets import preset_and_base, preset_names, preset_settings
from accel_rl.hardware.description import describe_machine
from command_line import check_names, make_parser, run_program
from environments import GAMES, accel, check, evaluate, number, refusal

VERSION = 1  # version of the JSON format
RESULTS = Path("benchmarks/results/compiled_scores.json")
STEPS = {"CartPole-v1": 100_000, "LunarLander-v3": 200_000, "Pendulum-v1": 100_000}
BOX_TASKS = ("Pendulum-v1",)
SEEDS = (1, 2, 3)
MODES = ("always", "never")  # values of --compile
LEAST_SHARE = 0.5  # a run counts as compiled if at least this share of its updates was

Values = dict[str, Any]


def distinct_sets(task: str) -> dict[str, list[str]]:
    """Returns one preset for each distinct set of settings for a task, with the names of all presets that have it."""
    sets: dict[str, list[str]] = {}
    for name in preset_names():
        settings = preset_settings(preset_and_base(name), "vectors", task in BOX_TASKS)
        settings = {key: settings[key] for key in sorted(settings) if key not in ("description", "base")}
        sets.setdefault(json.dumps(settings), []).append(name)
    return {names[0]: names for names in sets.values()}


def command(task: str, preset: str, mode: str, seed: int) -> str:
    """Returns the command that a user types; the runs also have an --out."""
    is_queued = "sampler" in preset_settings(preset_and_base(preset), "vectors")
    serial = "" if is_queued else " --sampler serial"  # the same rollouts; cheaper than processes here
    return f"accel-rl train --algo {preset} --env {task} --steps {STEPS[task]}{serial} --compile {mode} --seed {seed}"


def train_and_evaluate(words: str) -> Values:
    """Returns a run's part of the JSON, or why the command is refused. Raises RunError if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, start = Path(scratch) / "run", time.perf_counter()
        trained = accel(*shlex.split(words)[1:], "--out", str(folder))
        if trained.returncode == 2:
            return {"command": words, "refused": refusal(trained)}
        check(trained)
        seconds = time.perf_counter() - start
        with (folder / "progress.csv").open(newline="") as file:
            shares = [float(row["time/compiled_share"]) for row in csv.DictReader(file)]
        return {
            "command": words,
            "seconds": round(seconds, 1),
            "compiled_share": round(fmean(shares), 3),
            "score": evaluate(folder)["mean_reward"],
        }


def why_left_out(runs: Values) -> str:
    """Returns why a preset is left out on a task, judging by its runs so far; "" if it is not."""
    for run in runs.values():
        if "refused" in run:
            return str(run["refused"])
        if "--compile always" in run["command"] and run["compiled_share"] < LEAST_SHARE:
            return "its updates are not compiled"
    return ""


def missing(tasks: Sequence[str], presets: Sequence[str], seeds: Sequence[int], known: Values) -> Iterator[Any]:
    """Yields each missing run: its task, the first preset of its set, the set's names, its key and its command."""
    for task in tasks:
        for first, names in distinct_sets(task).items():
            if presets and not {*presets} & {*names}:
                continue
            for seed in seeds:
                for mode in MODES:
                    runs = known.get(task, {}).get(first, {}).get("runs", {})
                    if f"{mode} {seed}" not in runs and not why_left_out(runs):
                        yield task, first, names, f"{mode} {seed}", command(task, first, mode, seed)


def run(tasks: Sequence[str], presets: Sequence[str], seeds: Sequence[int], file: Path) -> Values:
    """Makes the runs that `file` lacks; returns its contents, task -> preset -> names and runs.

    Raises UsageError for an unknown name, RunError if a run fails."""
    check_names("task", tasks, STEPS)
    check_names("preset", presets, preset_names())
    known: Values = json.loads(file.read_text())["tasks"] if file.exists() else {}
    about = {"benchmark": "compiled_scores", "version": VERSION, "machine": describe_machine(), "games": GAMES}
    for task, first, names, key, words in missing(tasks, presets, seeds, known):
        held = known.setdefault(task, {}).setdefault(first, {"names": names, "runs": {}})
        held["runs"][key] = made = train_and_evaluate(words)
        write_json(file, {**about, "tasks": known})
        print(f"{words}: {made.get('refused') or number(made['score'])}", flush=True)
    return known


def table(known: Values) -> str:
    """Returns the mean scores of each task and preset with their intervals, as a table in Markdown."""
    lines = ["| task | presets | compiled | eager | intervals overlap |", "|---|---|---|---|---|"]
    for task, held in known.items():
        for each in held.values():
            scores = [
                [run["score"] for key, run in each["runs"].items() if key.startswith(mode) and "score" in run]
                for mode in MODES
            ]
            if why_left_out(each["runs"]) or not all(scores):
                continue
            both = [interval({task: np.array(of_mode)}, mean_of_means) for of_mode in scores]
            is_same = both[0].low <= both[1].high and both[1].low <= both[0].high
            names = ", ".join(f"`{name}`" for name in each["names"])
            lines.append(f"| {task} | {names} | {cell(both[0])} | {cell(both[1])} | {'yes' if is_same else '**no**'} |")
    return "\n".join(lines)


def cell(score: Interval) -> str:
    value, low, high = map(number, score)
    return f"{value} ({low} to {high})"


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", default=[*STEPS], metavar="ENV", help=f"({' '.join(STEPS)})")
    parser.add_argument("--presets", nargs="+", default=[], metavar="NAME", help="only these and equal presets (all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS], metavar="N", help="(1 2 3)")
    parser.add_argument("--table", action="store_true", help="run nothing; print the file's results as a table")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the results (%(default)s)")
    options = parser.parse_args()
    seeds = () if options.table else options.seeds
    return run_program(lambda: print(table(run(options.tasks, options.presets, seeds, options.json))))


if __name__ == "__main__":
    sys.exit(main())
