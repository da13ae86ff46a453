"""Draws speed over the number of learners."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from accel_rl.analysis.plot import COLORS

LOST = ("exchange", "straggler", "lock", "between")  # shares of their time that learners lose to each other


def draw_scaling(result: dict[str, Any], out: Path) -> None:
    """Draws result["points"] of benchmarks/scaling.py into out (.png), 1500 x 675 pixels: on the left steps/s over
    learners, on the right the shares of time that are lost to each cause."""
    points = result["points"]
    one, several = points[0], points[1:]
    figure = Figure(figsize=(10, 4.5), dpi=150, layout="constrained", facecolor="white")
    speed, lost = figure.subplots(1, 2)
    numbers = sorted({point["learners"] for point in points})
    ideal = [one["steps_per_second"] * (number if result["on_gpus"] else 1) for number in numbers]
    speed.plot(numbers, ideal, "--", color="#444444", label="ideal: n x one" if result["on_gpus"] else "one learner")
    for index, update in enumerate(dict.fromkeys(point["update"] for point in several)):
        curve = [one, *(point for point in several if point["update"] == update)]
        rates = [point["steps_per_second"] for point in curve]
        speed.plot([point["learners"] for point in curve], rates, "o-", color=COLORS[index], label=update)
        for point in curve[1:]:
            position = (point["learners"], point["steps_per_second"])
            rates_here = [p["steps_per_second"] for p in several if p["learners"] == point["learners"]]
            offset = (0, 8) if position[1] == max(rates_here) else (0, -16)
            text = f"{point['efficiency']['median']:.2f}"
            speed.annotate(text, position, offset, textcoords="offset points", ha="center", color=COLORS[index])
    speed.set_xticks(numbers, [str(number) for number in numbers])
    speed.margins(x=0.1)
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    speed.set_ylim(bottom=0, top=1.15 * max(*ideal, *(point["steps_per_second"] for point in points)))
    speed.set(xlabel="learners", ylabel="samples per second (beside the points: efficiency)")
    names = [point["name"].replace("_", "\n").replace("-", "\n") for point in several]
    below = [0.0] * len(several)
    for index, share in enumerate(LOST):
        heights = [100 * point["shares"].get(share, 0.0) for point in several]
        lost.bar(names, heights, bottom=below, color=COLORS[2 + index], width=0.6, label=share)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    lost.set(ylabel="share of the learners' time [%]")
    lost.set_ylim(bottom=0, top=1.15 * max([1.0, *below]))
    for axes in (speed, lost):
        axes.grid(color="#dddddd", linewidth=0.6, axis="y")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left" if axes is speed and not result["on_gpus"] else "best")
    speed.set_title(result["title"], loc="left", fontsize=9, fontweight="bold")
    lost.set_title(result["machine"]["cpu"], loc="right", fontsize=7, color="#666666")
    figure.savefig(out)
