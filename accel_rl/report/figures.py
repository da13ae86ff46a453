"""The figures of a page, in Plotly's form: {"data": traces, "layout": ...}."""

import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accel_rl.analysis.plot import COLORS, Curve, Floats, Run, Series, mean_and_interval, time_unit
from accel_rl.analysis.scores import Comparison, profiles

Trace = dict[str, Any]
Figure = dict[str, Any]

MAX_POINTS = 50_000  # in all lines of a page together; about a megabyte
NOTHING = Series(np.empty(0), np.empty(0), np.empty(0))
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}  # by matplotlib's names
STEPS = "agent steps"


def learning_curves(curves: Sequence[Curve], most: int) -> tuple[Figure, Figure]:
    """Draws training and evaluation scores over steps and over wall time. most: the largest number of points in a line.

    The line of several runs is their mean where all of them have scores, with its 95 % interval. Each run is also drawn
    as a thin line, unless there are more curves than colors."""
    unit, unit_s = time_unit([run for curve in curves for run in curve.runs])

    def draw(x_of: Callable[[Series], Floats], x_title: str) -> Figure:
        traces = _draw(curves, lambda run: run.score, x_of, most, ": training score")
        for curve in curves:
            x = np.concatenate([x_of(run.evaluation) for run in curve.runs])
            y = np.concatenate([run.evaluation.value for run in curve.runs])
            if len(x):
                marker = {"symbol": "diamond", "size": 9, "color": curve.color, "line": {"width": 1, "color": "white"}}
                name = f"{as_text(curve.label)}: evaluation score"
                traces.append({**_line(x, y, name, most), "mode": "markers", "marker": marker})
        figure = _figure(traces, x_title, "score")
        # The wide interval of two runs would flatten the curves.
        if values := [y for trace in traces if "hoverinfo" not in trace for y in trace["y"]]:
            margin = 0.05 * (max(values) - min(values)) or 1
            figure["layout"]["yaxis"]["range"] = [min(values) - margin, max(values) + margin]
        return figure

    over_time = draw(lambda series: series.time_s / unit_s, f"wall time ({unit})")
    return draw(lambda series: series.steps, STEPS), over_time


def speeds(curves: Sequence[Curve], most: int) -> Figure:
    """Draws agent steps per second over steps."""
    traces = _draw(curves, lambda run: run.columns.get("time/fps", NOTHING), lambda series: series.steps, most)
    figure = _figure(traces, STEPS, "agent steps per second")
    figure["layout"]["yaxis"]["rangemode"] = "tozero"
    return figure


def shares(curves: Sequence[Curve]) -> Figure:
    """Draws the mean of each share of time in progress.csv, first over a run's rows, then over runs."""
    columns = {name for curve in curves for run in curve.runs for name in run.columns}
    names = [name for name in columns if name.startswith("time/") and name.endswith("_share")]
    named = {name: name.removeprefix("time/").removesuffix("_share") for name in names}
    bars = []
    for curve in curves:
        means = {}
        for column, name in sorted(named.items()):
            logged = [run.columns[column].value for run in curve.runs if column in run.columns]
            if values := [value.mean() for value in logged if value.size]:
                means[as_text(name.replace("_", " "))] = float(f"{np.mean(values):.4g}")
        look = {"name": as_text(curve.label), "marker": {"color": curve.color}, "hovertemplate": HOVER}
        bars.append({"type": "bar", "x": list(means), "y": list(means.values()), **look})
    figure = _figure(bars, "", "share of time")
    figure["layout"]["xaxis"]["type"] = "category"
    figure["layout"]["yaxis"]["tickformat"] = ".0%"
    return figure


def performance_profiles(comparisons: Sequence[Comparison]) -> Figure:
    """Draws the fraction of a setting's runs that score more than x, with its 95 % interval."""
    bands, lines = [], []
    for index, (each, profile) in enumerate(zip(comparisons, profiles(comparisons), strict=True)):
        name = as_text(each.label)
        color, x = COLORS[index % len(COLORS)], profile.threshold
        bands += _band(x, profile.low, profile.high, name, color, len(x))
        lines.append({**_line(x, profile.part, name, len(x)), "line": {"color": color}})
    figure = _figure([*bands, *lines], "human-normalized score x", "fraction of runs that score more than x")
    figure["layout"]["yaxis"]["range"] = [0, 1.02]
    return figure


# ---- traces ----

HOVER = "%{y:,.6~g}<extra>%{fullData.name}</extra>"


def _draw(
    curves: Sequence[Curve],
    series_of: Callable[[Run], Series],
    x_of: Callable[[Series], Floats],
    most: int,
    suffix: str = "",
) -> list[Trace]:
    """Returns the intervals of means, and then the lines, of one quantity. suffix: the end of their names."""
    bands, lines = [], []
    for curve in curves:
        name = as_text(curve.label) + suffix
        logged = [(run, series_of(run)) for run in curve.runs if series_of(run).value.size]
        if not logged:
            continue
        xs, values = [x_of(series) for _, series in logged], [series.value for _, series in logged]
        x, mean = xs[0], values[0]
        if len(logged) > 1:
            x, mean, half_width = mean_and_interval(xs, values)
            bands += _band(x, mean - half_width, mean + half_width, name, curve.color, most)
            if len(curves) <= len(COLORS):
                for (run, _), run_x, value in zip(logged, xs, values, strict=True):
                    look = {"line": {"color": curve.color, "width": 1}, "opacity": 0.35, "showlegend": False}
                    seed = as_text(f", seed {run.config.get('seed')}")
                    lines.append({**_line(run_x, value, name + seed, most), **look, "legendgroup": name})
        line = {"color": curve.color, "dash": DASHES[curve.line_style]}
        lines.append({**_line(x, mean, name, most), "line": line, "marker": {"color": curve.color}})
    return [*bands, *lines]


def _line(x: Floats, y: Floats, name: str, most: int) -> Trace:
    """Returns a line through at most `most` of its points, the first and the last among them."""
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), most)).astype(int))
    return {
        "type": "scatter",
        "mode": "lines" if len(kept) > 1 else "markers",
        "name": name,
        "legendgroup": name,
        "x": _numbers(x[kept]),
        "y": _numbers(y[kept]),
        "hovertemplate": "%{y:,.6~g} at %{x:,.8~g}<extra>%{fullData.name}</extra>",
    }


def _band(x: Floats, low: Floats, high: Floats, name: str, color: str, most: int) -> list[Trace]:
    look = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", "hovertemplate": None}
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    fill = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.15)"}
    return [{**_line(x, low, name, most), **look}, {**_line(x, high, name, most), **look, **fill}]


def _figure(traces: list[Trace], x_title: str, y_title: str) -> Figure:
    clear = "rgba(0,0,0,0)"
    layout = {
        "height": 400 + 22 * sum(trace.get("showlegend", True) for trace in traces),
        "margin": {"l": 64, "r": 16, "t": 24, "b": 48},
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.24, "yanchor": "top", "bgcolor": clear},
        "hoverdistance": 100,
        "hoverlabel": {"namelength": -1},
        "modebar": {"bgcolor": clear, "color": "#808080", "activecolor": COLORS[0]},
        "xaxis": {"title": {"text": x_title}, "zeroline": False, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y_title}, "zeroline": False},
    }
    return {"data": traces, "layout": layout}


def as_text(label: str) -> str:
    """Escapes a user's text so that Plotly, which interprets some HTML, shows it unchanged."""
    return html.escape(label, quote=False).replace("\n", "<br>")


def _numbers(values: Floats) -> list[float]:
    return [float(f"{value:.8g}") for value in values]
