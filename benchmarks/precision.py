"""Draws learning in float32 and in bfloat16: scores over agent steps and over minutes, of runs that differ in both.

python benchmarks/precision.py FLOAT32.csv [...] --bf16 BFLOAT16.csv [...] --out FIGURE.png

The files are progress.csv of runs. A curve is dashed where it is the second run of its precision, and so on.
"""

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from accel_rl.analysis.plot import COLORS

Point = tuple[float, float, float]
STYLES = ("-", "--", ":", "-.")


def read_points(path: Path) -> list[Point]:
    """Returns steps, minutes and mean score of each row that has a score."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("rollout/ep_rew_mean")]
    points = [
        (float(row["time/total_timesteps"]), float(row["time/time_elapsed"]) / 60, float(row["rollout/ep_rew_mean"]))
        for row in rows
    ]
    return [point for point in points if math.isfinite(point[2])]


def draw(runs: dict[str, Sequence[Path]], out: Path) -> None:
    """Draws runs, by precision, into out (.png), 1500 x 675 pixels."""
    figure = Figure(figsize=(10, 4.5), dpi=150, layout="constrained", facecolor="white")
    over_steps, over_minutes = figure.subplots(1, 2, sharey=True)
    for color, (precision, paths) in zip(COLORS, runs.items(), strict=False):
        for number, path in enumerate(paths):
            steps, minutes, scores = zip(*read_points(path), strict=True)
            style = {"color": color, "linestyle": STYLES[number % len(STYLES)], "linewidth": 1.2}
            label = precision if len(paths) == 1 else f"{precision}, run {number + 1}"
            over_steps.plot([count / 1e6 for count in steps], scores, label=label, **style)
            over_minutes.plot(minutes, scores, label=label, **style)
    over_steps.set(xlabel="million agent steps", ylabel="mean score of the last games")
    over_minutes.set(xlabel="minutes")
    for axes in (over_steps, over_minutes):
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    over_steps.legend(frameon=False, loc="upper left")
    figure.savefig(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("float32", type=Path, nargs="+", metavar="FLOAT32.csv", help="progress.csv of runs in float32")
    parser.add_argument("--bf16", type=Path, nargs="+", required=True, metavar="BFLOAT16.csv", help="in bfloat16")
    parser.add_argument("--out", type=Path, required=True, metavar="FIGURE.png", help="the picture to write")
    options = parser.parse_args()
    draw({"float32": options.float32, "bfloat16": options.bf16}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
