"""Draws the figures of docs/results.md from files of scores (benchmarks/scores.py).

They are six inches wide, for phones, and their lines differ in dashes and markers, too."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accel_rl.analysis.plot import COLORS, LINE_STYLES, Floats, new_figure, tidy
from scores_page import MINUTES, SCORE, STEPS, Kept, Values, find

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^DvPX*<>"
RUNS: Sequence[Values] = (  # looks of the first and the second setting's runs
    {"color": "black", "linewidth": 1.2},
    {"color": "#888888", "linewidth": 2, "marker": "o", "markersize": 4, "markevery": 0.15},
)


def mean_curve(kept: Kept, column: int) -> tuple[Floats, Floats]:
    """Returns steps or minutes, and the mean training score where all runs have one; both are empty without minutes."""
    xs, scores = kept.column(column), kept.column(SCORE)
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    if not low < high:  # or nan
        return np.empty(0), np.empty(0)
    x = np.linspace(low, high, 300)
    return x, np.mean([np.interp(x, *points) for points in zip(xs, scores, strict=True)], axis=0)


def methods_figure(over_steps: Sequence[Kept], over_minutes: Sequence[Kept]) -> Any:
    """Draws each method's mean training score on Pong over agent steps, and over minutes below.

    A method has the same color, dashes and marker in both; labels are next to the ends of the lines."""
    drawn = new_figure(width=6, height=9.5, dpi=150)
    names = list(dict.fromkeys(each.method for each in [*over_steps, *over_minutes]))
    looks: Mapping[str, Values] = {
        name: {
            "color": COLORS[index % len(COLORS)],
            "linestyle": LINE_STYLES[(index + index // len(LINE_STYLES)) % len(LINE_STYLES)],
            "marker": MARKERS[index % len(MARKERS)],
        }
        for index, name in enumerate(names)
    }
    upper, lower = drawn.subplots(2, 1)
    _draw_methods(upper, over_steps, STEPS, looks)
    _draw_methods(lower, over_minutes, MINUTES, looks)
    upper.set_xlabel("agent steps", fontsize=13)
    lower.set_xlabel("minutes (logarithmic)", fontsize=13)
    return drawn


def _draw_methods(axes: "Axes", methods: Sequence[Kept], column: int, looks: Mapping[str, Values]) -> None:
    curves = {each.method: mean_curve(each, column) for each in methods}
    curves = {name: curve for name, curve in curves.items() if len(curve[0])}
    for name, (x, score) in curves.items():
        axes.plot(x, score, **looks[name], linewidth=2, markevery=40, markersize=7)
    tidy(axes)
    axes.set(ylim=(-22, 22))
    axes.set_ylabel("score of the last 100 games", fontsize=13)
    axes.tick_params(labelsize=12)
    if column == MINUTES:
        ticks = [1, 2, 5, 10, 20, 50, 100, 200]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(left=0.7)
    else:
        axes.set_xlim(left=0)
    for (name, (x, score)), at in zip(
        curves.items(), label_positions([s[-1] for _, s in curves.values()]), strict=True
    ):
        axes.annotate(
            "", (x[-1], score[-1]), (1.03, at), textcoords=axes.get_yaxis_transform(), annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.8},
        )  # fmt: skip
        ends: Values = {"transform": axes.get_yaxis_transform(), "clip_on": False}
        axes.plot([1.04, 1.085, 1.13], [at] * 3, **looks[name], **ends, linewidth=2, markersize=7, markevery=[1])
        axes.text(1.15, at, name, fontsize=12, va="center", **ends)


def label_positions(values: Sequence[float]) -> list[float]:
    """Returns label positions for lines that end at these values, in the same order and without overlap."""
    low, high = -21.5, 21.5  # on the axis of methods_figure
    apart = min(2.7, (high - low) / max(1, len(values) - 1))
    order = np.argsort(values, kind="stable")
    at = np.array(values, np.float64)[order]
    for index in range(len(at)):
        at[index] = max(at[index], at[index - 1] + apart if index else low)
    for index in reversed(range(len(at))):
        at[index] = min(at[index], at[index + 1] - apart if index + 1 < len(at) else high)
    placed = np.empty_like(at)
    placed[order] = at
    return [float(each) for each in placed]


def games_figure(settings: Sequence[str], games: Sequence[str], kept: Sequence[Kept], published: Values) -> Any:
    """Draws each game's training scores over agent steps: a line for each seed of one or two settings, horizontal lines
    for published scores.

    Games without a run have no panel."""
    games = [game for game in games if find(kept, settings[0], game)] or games
    rows = -(-len(games) // 2)
    drawn = new_figure(width=6, height=2.3 * rows + 0.8, dpi=150)
    axes = drawn.subplots(rows, 2).flatten()
    handles = {}
    for game, each in zip(games, axes, strict=False):
        for setting, look in zip(settings, RUNS, strict=False):
            found = find(kept, setting, game)
            for run in found.runs if found else []:
                [handles[f"{setting}, by seed"]] = each.plot(run.curve[:, STEPS], run.curve[:, SCORE], **look)
        for index, (name, scores) in enumerate(published["scores"].items()):
            if game in scores:
                value = float(str(scores[game]).split()[0])
                handles[name] = each.axhline(value, color=COLORS[index], linestyle=LINE_STYLES[index + 1], linewidth=2)
        each.set_title(game, fontsize=11)
        tidy(each)
        each.tick_params(labelsize=12)
        each.set_xlim(left=0)
    for empty in axes[len(games) :]:
        empty.axis("off")
    drawn.supxlabel("agent steps", fontsize=13)
    drawn.supylabel("score of the last 100 games", fontsize=13)
    drawn.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2, frameon=False, fontsize=11)
    return drawn
