"""Trains the algorithms whose settings for vectors were chosen on five environments together, with fresh seeds.

python benchmarks/defaults.py [--algos ALGO ...] [--seeds 4 5 6] [--table] [--json benchmarks/results/defaults.json]

Run it from the repository's root. Each run is one `accel-rl train` with the algorithm's defaults, then one
`accel-rl eval` of the final policy over 20 games. The file gets every run when it has ended; runs that it holds
already, with the same command, are not made again. At the end a table is printed, which docs/benchmarks.md shows, and
the learning curves are drawn beside the file (--table: print and draw only). It needs
`pip install "gymnasium[classic-control,box2d]" minigrid`.
"""

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from accel_rl.analysis.plot import COLORS, Curve, Run, Series, draw_over, new_figure, read_run, save
from accel_rl.bench.output import write_json
from accel_rl.hardware.description import describe_machine
from command_line import check_names, make_parser, run_program
from environments import GAMES, accel, check, evaluate, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 1  # of the JSON
RESULTS = Path("benchmarks/results/defaults.json")
ALGOS = ("dqn", "categorical_dqn", "eps_rainbow", "a2c")
ON_POLICY = ("a2c",)  # needs more steps, each of which costs less
SEEDS = (4, 5, 6)  # the settings were chosen on 1 to 3
MINIGRID = "--wrappers minigrid.wrappers:ImgObsWrapper"

# The flags that name an environment; the steps of the algorithms with a replay, and of those without.
TASKS = {
    "CartPole-v1": ("--env CartPole-v1", 100_000, 200_000),
    "Acrobot-v1": ("--env Acrobot-v1", 100_000, 200_000),
    "LunarLander-v3": ("--env LunarLander-v3", 100_000, 500_000),
    "MiniGrid-DoorKey-5x5-v0": (f"--env minigrid:MiniGrid-DoorKey-5x5-v0 {MINIGRID}", 50_000, 100_000),
    "MiniGrid-Empty-Random-6x6-v0": (f"--env minigrid:MiniGrid-Empty-Random-6x6-v0 {MINIGRID}", 50_000, 100_000),
}

Result = dict[str, Any]


def steps_of(algo: str, task: str) -> int:
    """Returns for how many agent steps an algorithm is trained."""
    _, with_replay, without = TASKS[task]
    return without if algo in ON_POLICY else with_replay


def command(algo: str, task: str, seed: int) -> str:
    """Returns what a user types; the runs below have an --out besides."""
    return f"accel-rl train --algo {algo} {TASKS[task][0]} --steps {steps_of(algo, task)} --seed {seed}"


def train_and_evaluate(typed: str) -> Result:
    """Runs an `accel-rl train`; returns what a JSON holds of it: command, seconds, score of the final policy, curve.

    Raises RunError if its training or evaluation fails."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        start = time.perf_counter()
        check(accel("train", *shlex.split(typed)[2:], "--out", str(folder)))
        seconds = time.perf_counter() - start
        score = read_run(folder).score
        curve = {"steps": score.steps.tolist(), "score": score.value.round(3).tolist()}
        return {"command": typed, "seconds": round(seconds, 1), "score": evaluate(folder), "curve": curve}


def run(algos: Sequence[str], seeds: Sequence[int], file: Path) -> Result:
    """Makes the runs that `file` does not hold yet; returns those that it holds then: algorithm, task, seed.

    Raises UsageError for an unknown algorithm, RunError if a run fails."""
    check_names("algorithm", algos, ALGOS)
    known: Result = json.loads(file.read_text())["runs"] if file.exists() else {}
    for algo, task, seed in ((algo, task, seed) for algo in algos for task in TASKS for seed in seeds):
        runs = known.setdefault(algo, {}).setdefault(task, {})
        if runs.get(str(seed), {}).get("command") != command(algo, task, seed):
            runs[str(seed)] = train_and_evaluate(command(algo, task, seed))
            known = {each: known[each] for each in ALGOS if each in known}
            about = {"benchmark": "defaults", "version": VERSION, "machine": describe_machine(), "games": GAMES}
            write_json(file, {**about, "runs": known})
            print(f"{command(algo, task, seed)}: {runs[str(seed)]['score']['mean_reward']:.2f}", flush=True)
    return known


def table(known: Result) -> str:
    """Returns each algorithm's mean score in each task, and behind it the scores by seed, as a table in Markdown."""
    lines = ["| | " + " | ".join(f"`{algo}`" for algo in known) + " |", "|---" * (len(known) + 1) + "|"]
    for task in TASKS:
        cells = [cell([r["score"]["mean_reward"] for r in tasks.get(task, {}).values()]) for tasks in known.values()]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(scores: list[float]) -> str:
    """Returns the mean of scores, in bold, and the scores; nothing if there are none yet."""
    return f"**{number(fmean(scores))}** ({', '.join(map(number, scores))})" if scores else ""


def make_figure(known: Result) -> "Figure":
    """Draws the scores over steps, a panel for each task and a curve for each algorithm; 1800 x 900 pixels."""
    figure = new_figure(width=18, height=9)
    *panels, rest = figure.subplots(2, 3).flat
    for axes, task in zip(panels, TASKS, strict=True):
        curves = [
            Curve(algo, [as_run(each) for each in tasks[task].values()], COLORS[index], "-")
            for index, (algo, tasks) in enumerate(known.items())
            if tasks.get(task)
        ]
        draw_over(axes, curves, lambda series: series.steps)
        axes.set_title(task)
    handles, labels = panels[0].get_legend_handles_labels()  # the first task that each algorithm learns
    rest.axis("off")
    rest.legend(handles, labels, loc="center", frameon=False, title="mean of the last 100 games, over agent steps")
    return figure


def as_run(result: Result) -> Run:
    """Returns a run that the JSON holds as it is drawn."""
    nothing = np.empty(0)
    steps, score = (np.array(result["curve"][name], np.float64) for name in ("steps", "score"))
    return Run({}, Series(steps, np.zeros_like(steps), score), Series(nothing, nothing, nothing))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--algos", nargs="+", default=[*ALGOS], metavar="ALGO", help=f"of {', '.join(ALGOS)} (all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS], metavar="N", help="(4 5 6)")
    parser.add_argument("--table", action="store_true", help="run nothing; table and curves of what the file holds")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the results (%(default)s)")
    options = parser.parse_args()
    known = run(() if options.table else options.algos, options.seeds, options.json)
    print(table(known))
    save(make_figure(known), options.json.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(run_program(main))
