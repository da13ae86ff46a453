"""Trains CartPole-v1 with every distinct set of settings for vectors that presets resolve to.

python benchmarks/vector_presets.py [--presets NAME ...] [--seeds 4 5 6] [--table]
                                    [--json benchmarks/results/vector_presets.json]

Run it from the repository's root. Each run is one `accel-rl train` of 200,000 agent steps (400,000 of presets whose
learners are asynchronous), then one `accel-rl eval` of the final policy over 20 games; 500 is the most. The file gets
every run when it has ended; runs that it holds already, with the same settings, are not made again. At the end a table
is printed, which docs/benchmarks.md shows (--table: only this).
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from accel_rl.bench.output import write_json
from accel_rl.config.presets import preset_and_base, preset_names, preset_settings
from accel_rl.hardware.description import describe_machine
from command_line import check_names, make_parser, run_program
from defaults import train_and_evaluate
from environments import GAMES, number

VERSION = 1  # of the JSON
RESULTS = Path("benchmarks/results/vector_presets.json")
SEEDS = (4, 5, 6)
STEPS, ASYNC_STEPS = 200_000, 400_000
ENOUGH = 450  # a mean below it is printed in bold

Values = dict[str, Any]
Sets = list[tuple[list[str], Values]]


def distinct_sets() -> Sets:
    """Returns each set of settings for vectors behind the names of the presets that have it, first of all its class.

    Sets for Box actions, which CartPole lacks, are left out."""
    sets: dict[str, tuple[list[str], Values]] = {}
    for name in preset_names():
        settings = preset_settings(preset_and_base(name), "vectors")
        if "gaussian" in settings:
            continue
        settings = {key: settings[key] for key in sorted(settings) if key not in ("description", "base")}
        sets.setdefault(json.dumps(settings), ([], settings))[0].append(name)
    return [*sets.values()]


def command(name: str, settings: Values, seed: int | str) -> str:
    """Returns what a user types; the runs have an --out besides."""
    steps = ASYNC_STEPS if settings.get("update") == "central_store" else STEPS
    serial = "" if "sampler" in settings else " --sampler serial"  # the same rollouts; cheaper than processes here
    return f"accel-rl train --algo {name} --env CartPole-v1 --steps {steps}{serial} --seed {seed}"


def run(chosen: Sequence[str], seeds: Sequence[int], file: Path) -> Values:
    """Makes the runs of these presets' sets (none named: of all) that `file` does not hold yet; returns what it holds
    then, by the first name of each set.

    Raises UsageError for an unknown name, RunError if a run fails."""
    check_names("preset", chosen, preset_names())
    sets = distinct_sets()
    known: Values = json.loads(file.read_text())["sets"] if file.exists() else {}
    for names, settings in sets:
        first = names[0]
        if known.get(first, {}).get("settings") != settings:
            known[first] = {"settings": settings, "runs": {}}
        known[first]["names"] = names
        runs = known[first]["runs"]
        for seed in seeds if not chosen or {*chosen} & {*names} else ():
            if str(seed) not in runs:
                runs[str(seed)] = train_and_evaluate(command(first, settings, seed))
                known = {names[0]: known[names[0]] for names, _ in sets if names[0] in known}
                about = {"benchmark": "vector_presets", "version": VERSION, "machine": describe_machine()}
                write_json(file, {**about, "games": GAMES, "sets": known})
                print(f"{runs[str(seed)]['command']}: {runs[str(seed)]['score']['mean_reward']:.1f}", flush=True)
    return known


def table(known: Values) -> str:
    """Returns each set's mean score and those of its seeds, as a table in Markdown, and which sets are missing."""
    lines = ["| presets | agent steps | mean | by seed |", "|---|---|---|---|"]
    for held in known.values():
        if not held["runs"]:
            continue
        names = ", ".join(f"`{name}`" for name in held["names"])
        scores = [run["score"]["mean_reward"] for run in held["runs"].values()]
        steps = next(iter(held["runs"].values()))["curve"]["steps"][-1]
        mean = number(fmean(scores)) if fmean(scores) >= ENOUGH else f"**{number(fmean(scores))}**"
        lines.append(f"| {names} | {steps:,.0f} | {mean} | {', '.join(map(number, scores))} |")
    missing = [f"`{name}`" for names, _ in distinct_sets() if not known.get(names[0], {}).get("runs") for name in names]
    return "\n".join([*lines, *([f"\nNot run yet: {', '.join(missing)}."] if missing else [])])


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--presets", nargs="+", default=[], metavar="NAME", help="only the sets of these (all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS], metavar="N", help="(4 5 6)")
    parser.add_argument("--table", action="store_true", help="run nothing; print the table of what the file holds")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the results (%(default)s)")
    options = parser.parse_args()
    seeds = () if options.table else options.seeds
    return run_program(lambda: print(table(run(options.presets, seeds, options.json))))


if __name__ == "__main__":
    sys.exit(main())
