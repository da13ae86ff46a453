"""Learning curves of runs, finished or not: score over agent steps and over wall time, with its spread."""

import contextlib
import csv
import json
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from accel_rl.config.run_settings import CHANGEABLE
from accel_rl.config.sources import read_yaml
from accel_rl.errors import RunError, UsageError, needs_extra
from accel_rl.run_folder.atomic import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

# Runs that differ only in these settings are repetitions and become one curve. (The number of learners is compared.)
OWN_SETTINGS = {"seed", "envs_per_worker", "checkpoint_interval_steps", "log_interval_steps", "tensorboard"}
NOT_SETTINGS = {*CHANGEABLE, *OWN_SETTINGS} - {"steps"}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080")  # Okabe & Ito 2008
LINE_STYLES = ("-", "--", ":", "-.")  # one for each pass through the colors
MAX_LEGEND_WIDTH, MAX_LABEL_WIDTH, LEGEND_HANDLE_WIDTH = 140, 58, 11  # characters
# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Series(NamedTuple):
    """One logged quantity: three arrays [N] of the same length, steps increasing."""

    steps: Floats
    time_s: Floats
    value: Floats


@dataclass(frozen=True)
class Run:
    """A run's settings and its scores in training and in evaluation. columns: all of progress.csv, by name."""

    config: dict[str, Any]
    score: Series
    evaluation: Series
    columns: dict[str, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """Runs with the same settings, and the look of their curve."""

    label: str
    runs: list[Run]
    color: str
    line_style: str  # in matplotlib's notation


def save(figure: "Figure", out: Path) -> None:
    """Writes the whole figure or nothing. Raises UsageError if out cannot be written or has an unknown format."""
    formats = figure.canvas.get_supported_filetypes()
    format = out.suffix[1:].lower()
    if format not in formats:
        raise UsageError(f"cannot write a figure to {out}: its name must end in .{', .'.join(sorted(formats))}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_file(out, lambda file: figure.savefig(file, format=format), "figure")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    except RunError as error:
        raise UsageError(str(error)) from error


def make_figure(run_dirs: Sequence[Path]) -> "Figure":
    """Draws the score over steps on the left, over wall time on the right; 1200 x 500 pixels.

    Runs that differ only in seed and folder become one curve: their mean where all of them have scores
    (linear interpolation between log rows, no extrapolation) and its pointwise 95 % confidence interval,
    +- t(n - 1) * standard error over the n runs. Each run is also drawn as a thin line, unless there are more curves
    than colors. A single run is drawn as it was logged. Dots are evaluations. Raises UsageError if a folder holds no
    run or score, or matplotlib is missing."""
    figure = new_figure(width=12)
    if not run_dirs:
        raise UsageError("no run folder to plot was given")
    runs = [read_run(run_dir) for run_dir in {run_dir.resolve(): run_dir for run_dir in run_dirs}.values()]
    curves = group_runs(runs)
    over_steps, over_time = figure.subplots(1, 2, sharey=True)
    draw_curves(over_steps, over_time, curves)
    envs = {run.config.get("env") for run in runs}
    if len(envs) == 1:
        figure.suptitle(str(envs.pop()), fontsize=14, fontweight="bold", color="#222222")
    return figure


def new_figure(width: float, height: float = 5, dpi: int = 100) -> "Figure":
    """Makes an empty figure. width, height: in inches of dpi pixels. Raises UsageError if matplotlib is missing."""
    with needs_extra("drawing", "plot"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained", facecolor="white")


def draw_curves(over_steps: "Axes", over_time: "Axes", curves: list[Curve]) -> None:
    """Draws the curves into both axes, with a legend below them."""
    runs = [run for curve in curves for run in curve.runs]
    unit, unit_s = time_unit(runs)
    draw_over(over_steps, curves, lambda series: series.steps)
    draw_over(over_time, curves, lambda series: series.time_s / unit_s)
    over_steps.set(xlabel="agent steps", ylabel="score (mean of the last 100 games)")
    over_time.set(xlabel=f"wall time ({unit})")

    handles, _ = over_steps.get_legend_handles_labels()
    if any(run.evaluation.value.size for run in runs):
        handles += over_steps.plot([], [], "o", color="#777777", markersize=5, label="evaluation")
    columns = legend_columns([str(handle.get_label()) for handle in handles])
    over_steps.figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def legend_columns(labels: Sequence[str]) -> int:
    """Returns how many columns a legend of these labels has: as many as fit, evenly filled."""
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(len(labels), MAX_LEGEND_WIDTH // (longest + LEGEND_HANDLE_WIDTH)))
    return math.ceil(len(labels) / math.ceil(len(labels) / columns))


def time_unit(runs: Sequence[Run]) -> tuple[str, int]:
    """Returns the unit that suits the wall time of these runs, and its length in seconds."""
    longest_s = max(series.time_s.max(initial=0) for run in runs for series in (run.score, run.evaluation))
    return ("hours", 3600) if longest_s >= 2 * 3600 else ("minutes", 60)


def read_run(run_dir: Path) -> Run:
    """Reads a run's settings and log. Raises UsageError as `read_log` does, and if there is no score yet."""
    run = read_log(run_dir)
    if not run.score.value.size:
        raise UsageError(f"no game has finished yet in {run_dir}")
    return run


def read_log(run_dir: Path) -> Run:
    """Reads a run's settings and log, which may be empty. Raises UsageError if the folder holds no run or no log."""
    if not run_dir.is_dir():
        raise UsageError(f"there is no folder {run_dir}")
    if not (run_dir / "config.yaml").is_file():
        raise UsageError(f"{run_dir} is not a run's folder: it has no config.yaml")
    if not (run_dir / "progress.csv").is_file():
        raise UsageError(f"{run_dir} has no progress.csv yet: its run writes the first row after --log-interval-steps")
    lines = (run_dir / "progress.csv").read_text(errors="replace").splitlines(keepends=True)
    # The last line of an unfinished run may be half written.
    table = csv.DictReader(line for line in lines if line.endswith("\n"))
    try:
        rows, names = list(table), table.fieldnames or ()
    except csv.Error as error:
        raise UsageError(f"{run_dir / 'progress.csv'} is damaged: {error}") from None
    steps, time_s = _column(rows, "time/total_timesteps"), _column(rows, "time/time_elapsed")

    def series(name: str) -> Series:
        value = _column(rows, name)
        logged = np.isfinite(value) & np.isfinite(steps) & np.isfinite(time_s)
        return Series(steps[logged], time_s[logged], value[logged])

    config = read_yaml(run_dir / "config.yaml", "settings")
    config["learners"] = len(str(config.get("devices")).split(",")) * (config.get("learners_per_gpu") or 1)
    columns = {name: series(name) for name in names}
    return Run(config, series("rollout/ep_rew_mean"), series("eval/mean_reward"), columns)


def _column(rows: list[dict[str, str]], name: str) -> Floats:
    """Returns a column's numbers [N]; nan for other cells."""
    numbers = np.full(len(rows), math.nan)
    for index, row in enumerate(rows):
        with contextlib.suppress(ValueError):
            numbers[index] = float(row.get(name) or math.nan)
    return numbers


def group_runs(runs: Sequence[Run]) -> list[Curve]:
    """Groups the runs by their settings; labels each group with the settings that differ from the others'."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        settings = {name: value for name, value in run.config.items() if name not in NOT_SETTINGS}
        groups.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(run)
    configs = [group[0].config for group in groups.values()]
    one_env = len({str(config.get("env")) for config in configs}) == 1

    def name(config: dict[str, Any]) -> str:
        parts = [config.get("algo")] if one_env else [config.get("algo"), config.get("env")]
        return " ".join(str(part) for part in parts)

    curves = []
    for index, (config, group) in enumerate(zip(configs, groups.values(), strict=True)):
        same_name = [other for other in configs if name(other) == name(config)]
        count = [f"({len(group)} runs)"] if len(group) > 1 else []
        label = " ".join([name(config), *differing_settings(config, same_name), *count])
        style = LINE_STYLES[index // len(COLORS) % len(LINE_STYLES)]
        curves.append(Curve(textwrap.fill(label, MAX_LABEL_WIDTH), group, COLORS[index % len(COLORS)], style))
    return curves


def differing_settings(config: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the settings of a run that differ from any of the others', as in ["learning_rate=0.001"]."""
    return [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in config.items()
        if name not in NOT_SETTINGS and any(other.get(name) != value for other in others)
    ]


def mean_and_interval(xs: list[Floats], values: list[Floats]) -> tuple[Floats, Floats, Floats]:
    """Returns x, mean and half-width of the 95 % interval of n >= 2 runs, at each logged x within the span of all."""
    x = np.unique(np.concatenate(xs))
    x = x[(x >= max(run_x[0] for run_x in xs)) & (x <= min(run_x[-1] for run_x in xs))]
    value = np.stack([np.interp(x, *points) for points in zip(xs, values, strict=True)])  # [n, X]
    n = len(value)
    t = T_QUANTILES[min(n - 1, len(T_QUANTILES)) - 1]  # beyond the table at most 4 % too wide
    return x, value.mean(0), t * value.std(0, ddof=1) / math.sqrt(n)


def draw_over(axes: "Axes", curves: list[Curve], x_of: Callable[[Series], Floats]) -> None:
    """Draws the curves into axes, as make_figure describes. x_of: returns a series' x values [N]."""
    bands = []
    for curve in curves:
        color, style = curve.color, curve.line_style
        xs, values = [x_of(run.score) for run in curve.runs], [run.score.value for run in curve.runs]
        if len(curve.runs) == 1:
            x, mean = xs[0], values[0]
        else:
            x, mean, half_width = mean_and_interval(xs, values)
            if len(curves) <= len(COLORS):
                for run_x, run_value in zip(xs, values, strict=True):
                    axes.plot(run_x, run_value, color=color, linewidth=0.7, alpha=0.35)
                bands.append((x, mean - half_width, mean + half_width, color))
        marker = "o" if len(x) == 1 else None
        axes.plot(x, mean, style, color=color, linewidth=2, marker=marker, markersize=4, label=curve.label)
        for run in curve.runs:
            x, value = x_of(run.evaluation), run.evaluation.value
            axes.plot(x, value, "o", color=color, markersize=5, markeredgecolor="white", zorder=3)
    limits = axes.get_ylim()
    for x, low, high, color in bands:
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_ylim(limits)  # the wide interval of two runs would flatten the curves
    axes.set_xlim(left=0)
    tidy(axes)


def tidy(axes: "Axes") -> None:
    """Sets short tick labels, a faint grid, and no frame."""
    axes.xaxis.set_major_formatter(short)
    axes.yaxis.set_major_formatter(short)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#999999")
    axes.tick_params(length=0, colors="#555555", labelleft=True)


def short(value: float, _: object = None) -> str:
    """Formats a number in few characters: 100000 as 100k, 1500000 as 1.5M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
