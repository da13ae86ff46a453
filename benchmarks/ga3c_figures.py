"""Draws the results of benchmarks/ga3c_vs_synchronized.py as Figures 2 to 4 of the paper (Babaeizadeh et al., 2017)."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from accel_rl.analysis.plot import COLORS
from accel_rl.samplers.queued.adjustment import Counts
from ga3c_contestants import Row, format_counts

TOP = 3  # combinations of predictors and trainers for each number of agents
LINE_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))

Result = dict[str, Any]


def top_points(grid: list[Row], metric: str = "trainings_per_second") -> dict[int, list[Row]]:
    """Returns for each number of agents its TOP fastest points, the fastest first."""
    agents = sorted({int(row["agents"]) for row in grid})
    return {
        number: sorted((row for row in grid if row["agents"] == number), key=lambda row: -row[metric])[:TOP]
        for number in agents
    }


def draw_adjustment(result: Result, out: Path) -> None:
    """Draws Figure 2, 1200 x 900 pixels: for the first network, over time, the objective of each window, and below the
    accepted numbers of agents, predictors and trainers."""
    name, found = next(iter(result["networks"].items()))
    adjustment = found["adjustment"]
    windows, metric = adjustment["windows"], adjustment["objective"]
    figure = Figure(figsize=(8, 6), dpi=150, layout="constrained", facecolor="white")
    speed, numbers = figure.subplots(2, 1, sharex=True)
    seconds = [window["seconds"] for window in windows]
    speed.plot(seconds, [window["objective"] for window in windows], "-", color="#bbbbbb", linewidth=0.8)
    for accepted, marker, label in ((True, "o", "accepted counts"), (False, "x", "a change on trial")):
        points = [(window["seconds"], window["objective"]) for window in windows if window["accepted"] == accepted]
        if points:
            speed.plot(
                *zip(*points, strict=True), marker, color=COLORS[0 if accepted else 1], markersize=4, label=label
            )
    best = max(row[metric] for row in found["grid"])
    speed.axhline(best, color="#444444", linestyle="--", label="the grid's best")
    speed.set_ylim(bottom=0)
    speed.set(ylabel=metric.replace("_per_second", "/s").replace("_", " "))
    kept = [(window["seconds"], Counts(*window["counts"])) for window in windows if window["accepted"]]
    for index, field in enumerate(Counts._fields):
        values = [getattr(counts, field) for _, counts in kept]
        numbers.step([second for second, _ in kept], values, where="post", color=COLORS[index], label=field)
    numbers.set_yscale("log", base=2)
    numbers.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    numbers.set(xlabel="seconds", ylabel="number")
    _finish(figure, [speed, numbers], f"{name}: dynamic adjustment from 1/1/1", result)
    figure.savefig(out)


def draw_speeds(result: Result, out: Path) -> None:
    """Draws Figure 3, 1200 x 675 pixels: trainings/s of the fastest combinations of predictors and trainers for each
    number of agents, over those of the first network's fastest point."""
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained", facecolor="white")
    axes = figure.subplots()
    grids = {name: found["grid"] for name, found in result["networks"].items()}
    best = max(row["trainings_per_second"] for row in next(iter(grids.values())))
    for index, (name, grid) in enumerate(grids.items()):
        for rank, line in enumerate(_lines(grid)):
            speeds = [row["trainings_per_second"] / best for row in line]
            label = name if rank == 0 else None
            color, style = COLORS[index % len(COLORS)], LINE_STYLES[rank]
            axes.plot([row["agents"] for row in line], speeds, "o", ls=style, color=color, markersize=4, label=label)
            if len(grids) == 1:
                _annotate(axes, line, speeds)
    _over_agents(axes, grids)
    axes.set_ylim(bottom=0)
    axes.set(ylabel="trainings/s, of the fastest")
    _finish(figure, [axes], "the three fastest of each number of agents (predictors/trainers)", result)
    figure.savefig(out)


def draw_queues(result: Result, out: Path) -> None:
    """Draws Figure 4, 1500 x 675 pixels: the training queue's mean length and the mean prediction batch of Figure 3's
    points, for the first network."""
    figure = Figure(figsize=(10, 4.5), dpi=150, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2)
    name, found = next(iter(result["networks"].items()))
    titles = {"training_queue": "segments in the training queue", "prediction_batch": "predictions in a batch"}
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        for rank, line in enumerate(_lines(found["grid"])):
            values = [row[metric] for row in line]
            label = ("fastest", "second", "third")[rank]
            agents = [row["agents"] for row in line]
            axes.plot(agents, values, "o", ls=LINE_STYLES[rank], color=COLORS[rank], markersize=4, label=label)
            _annotate(axes, line, values)
        _over_agents(axes, {name: found["grid"]})
        axes.set_ylim(bottom=0)
        axes.set(ylabel=f"{title}, mean")
    _finish(figure, [*panels], f"{name}: the three fastest of each number of agents (predictors/trainers)", result)
    figure.savefig(out)


def _lines(grid: list[Row]) -> list[list[Row]]:
    """Returns the fastest point of each number of agents, then the second ones, then the third ones."""
    tops = top_points(grid).values()
    return [[top[rank] for top in tops if rank < len(top)] for rank in range(max(map(len, tops)))]


def _annotate(axes: Axes, line: list[Row], values: list[float]) -> None:
    for row, value in zip(line, values, strict=True):
        text = format_counts([int(row["predictors"]), int(row["trainers"])])
        axes.annotate(text, (row["agents"], value), (4, 4), textcoords="offset points", fontsize=6, color="#666666")


def _over_agents(axes: Axes, grids: dict[str, list[Row]]) -> None:
    ticks = sorted({int(row["agents"]) for grid in grids.values() for row in grid})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("agents")


def _finish(figure: Figure, panels: list[Axes], title: str, result: Result) -> None:
    for axes in panels:
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{result['options']['env']}, {title}\n{result['machine']['cpu']}", fontsize=9)
