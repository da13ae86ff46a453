"""Reports an experiment: one table and one figure of its results, next to the paper's numbers."""

import contextlib
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from accel_rl.analysis.plot import COLORS, LINE_STYLES, Curve, draw_curves, new_figure, save, short, tidy
from accel_rl.analysis.plot import read_run as read_curve
from accel_rl.config.sources import read_settings
from accel_rl.errors import UsageError
from accel_rl.experiments.grid import Combination, Experiment
from accel_rl.hardware.description import format_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXTRAPOLATED = "*"


def report(experiment: Experiment, folder: Path) -> None:
    """Prints the table; writes summary.md, summary.json and summary.png to folder."""
    about = {"title": experiment.title, "machines": _machines(experiment, folder)}
    result = {**about, **summarize(experiment, folder)}
    text = as_markdown(experiment, result)
    (folder / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "summary.md").write_text(text)
    print(f"\n{text}")
    try:
        save(make_figure(experiment, result, folder), folder / "summary.png")
        print(f"picture  {folder / 'summary.png'}")
    except UsageError as error:
        print(f"picture  none: {error}")


# ---- results ----


def summarize(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Returns a row of results for each combination; missing ones are None.

    A row has the seeds' mean score and its standard deviation, agent steps per second of wall time, hours for the
    paper's number of steps (or the run's own) at that rate, and the speed-up over one learner."""
    rows = [_row(experiment, combination, folder) for combination in experiment.combinations]
    pairs = list(zip(experiment.combinations, rows, strict=True))
    rows_of_one_learner = {combination.family: row for combination, row in pairs if combination.learners == 1}
    for combination, row in pairs:
        one_learner = rows_of_one_learner.get(combination.family)
        row["speed_up"] = _ratio(row["steps_per_second"], one_learner["steps_per_second"]) if one_learner else None
        paper, reference = row["paper"], one_learner["paper"] if one_learner else {}
        by_rate = _ratio(paper.get("steps_per_second"), reference.get("steps_per_second"))
        paper["speed_up"] = by_rate or _ratio(reference.get("hours"), paper.get("hours"))
    return {"source": experiment.paper.source, "steps": experiment.paper.steps, "rows": rows}


def _row(experiment: Experiment, combination: Combination, folder: Path) -> dict[str, Any]:
    summaries, finished, steps = [], 0, experiment.paper.steps
    for run in experiment.runs_of(combination):
        with contextlib.suppress(OSError, ValueError):  # the run has no summary yet
            summary = json.loads((folder / run.name / "summary.json").read_text())
            wanted = read_settings(folder / run.name)["steps"]
            summaries.append(summary)
            finished += summary["total_timesteps"] >= wanted
            steps = steps or wanted
    scores = [summary["ep_rew_mean"] for summary in summaries if summary["ep_rew_mean"] is not None]
    rates = [summary["total_timesteps"] / summary["time_elapsed"] for summary in summaries if summary["time_elapsed"]]
    rate = fmean(rates) if rates else None
    hours = steps / rate / 3600 if steps and rate else None
    paper: dict[str, float | None] = {**experiment.paper.numbers(combination)}
    return {
        "name": combination.name,
        "settings": {"learners": combination.learners, **combination.settings},
        "runs": len(experiment.seeds),
        "finished": finished,
        "total_timesteps": [summary["total_timesteps"] for summary in summaries],
        "score": fmean(scores) if scores else None,
        "score_spread": stdev(scores) if len(scores) > 1 else None,
        "steps_per_second": rate,
        "hours": hours,
        "hours_are_for": steps,
        "extrapolated": bool(steps and summaries and min(s["total_timesteps"] for s in summaries) < steps),
        "paper": paper,
        "hours_over_paper": _ratio(hours, paper.get("hours")),
        "steps_per_second_over_paper": _ratio(rate, paper.get("steps_per_second")),
    }


def _machines(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Returns the machines of the runs, from their folders, each once."""
    machines: list[dict[str, Any]] = []
    for run in experiment.runs:
        with contextlib.suppress(OSError, ValueError):
            machine = json.loads((folder / run.name / "machine.json").read_text())
            machines += [] if machine in machines else [machine]
    return machines


def _ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value is not None and reference else None


# ---- table ----


def as_markdown(experiment: Experiment, result: dict[str, Any]) -> str:
    """Formats the results as a table in Markdown, with notes below it."""
    rows, machines = result["rows"], result["machines"]
    varied = list(dict.fromkeys(name for combination in experiment.combinations for name in combination.varied))
    values = [{**row["settings"], **c.varied} for row, c in zip(rows, experiment.combinations, strict=True)]
    columns = {name: [str(value.get(name, "")) for value in values] for name in varied}
    columns["runs"] = [
        f"{r['finished']}" if r["finished"] == r["runs"] else f"{r['finished']} of {r['runs']}" for r in rows
    ]
    columns["score"] = [
        _format(r["score"], 1) + (f" ± {r['score_spread']:.1f}" if r["score_spread"] is not None else "") for r in rows
    ]
    columns |= _of_paper(rows, "score", 1)
    columns["steps/s"] = [_format(row["steps_per_second"], 0) for row in rows]
    columns |= _of_paper(rows, "steps_per_second", 0)
    # Without a paper's number of steps, the hours are for the runs' own, which may take only seconds.
    unit, per_hour = ("hours", 1) if result["steps"] else ("minutes", 60)
    columns[_time_for(unit, rows)] = [
        _format(row["hours"] and row["hours"] * per_hour, 2) + (EXTRAPOLATED if row["extrapolated"] else "")
        for row in rows
    ]
    columns |= _of_paper(rows, "hours", 2)
    if any(combination.learners > 1 for combination in experiment.combinations):
        columns["speed-up"] = [_format(row["speed_up"], 2) for row in rows]
        columns |= _of_paper(rows, "speed_up", 2)

    spread = ", ± standard deviation over the seeds" if len(experiment.seeds) > 1 else ""
    notes = [f"Score: mean of the last 100 games{spread}. Speed-up: over one learner."]
    if any(row["extrapolated"] for row in rows):
        shortest = min(min(row["total_timesteps"]) for row in rows if row["extrapolated"])
        notes.append(f"{EXTRAPOLATED}: extrapolated from the speed of runs of {shortest:,} steps or more.")
    if result["source"]:
        notes.append(f"Paper: {result['source']}.")
    notes += [f"Machine: {format_machine(machine)}." for machine in machines]
    return "\n".join([f"# {result['title']}", "", *_table(columns), "", *(f"{note}  " for note in notes)]) + "\n"


def _time_for(unit: str, rows: list[dict[str, Any]]) -> str:
    steps = {row["hours_are_for"] for row in rows} - {None}
    return f"{unit} for {short(steps.pop())} steps" if len(steps) == 1 else unit


def _of_paper(rows: list[dict[str, Any]], measure: str, digits: int) -> dict[str, list[str]]:
    """Returns columns of the paper's numbers and our ratios to them; no column if the paper has no such number."""
    numbers = [row["paper"].get(measure) for row in rows]
    if not any(number is not None for number in numbers):
        return {}
    name = measure.replace("steps_per_second", "steps/s").replace("_", "-")
    columns = {f"paper: {name}": [_format(number, digits) for number in numbers]}
    if f"{measure}_over_paper" in rows[0]:
        columns[f"ours / paper: {name}"] = [_format(row[f"{measure}_over_paper"], 2) for row in rows]
    return columns


def _format(value: float | None, digits: int) -> str:
    """Formats a number with this many decimals, or two significant digits if it is small."""
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if value == 0 or abs(value) >= 10 ** (1 - digits) else f"{value:.2g}"


def _table(columns: dict[str, list[str]]) -> list[str]:
    """Returns the lines of an aligned table in Markdown."""
    lines = [tuple(columns), *zip(*columns.values(), strict=True)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = [" | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 1) + ":" for width in widths)
    return [f"| {text[0]} |", f"|{rule}|", *(f"| {line} |" for line in text[1:])]


# ---- figure ----


def make_figure(experiment: Experiment, result: dict[str, Any], folder: Path) -> "Figure":
    """Draws learning curves over steps and over wall time and, for several numbers of learners, the speed over them.

    Combinations that differ only in learners share a color; each number of learners has a line style. Raises
    UsageError if no game has finished in any run, or matplotlib is missing."""
    families = _families(experiment)
    counts = sorted({combination.learners for combination in experiment.combinations})
    curves = []
    for color, family in enumerate(families):
        for combination in family:
            runs = []
            for run in experiment.runs_of(combination):
                with contextlib.suppress(UsageError):  # the run has not started, or no game has finished yet
                    runs.append(read_curve(folder / run.name))
            style = LINE_STYLES[counts.index(combination.learners) % len(LINE_STYLES)]
            if runs:
                curves.append(Curve(combination.name, runs, COLORS[color % len(COLORS)], style))
    if not curves:
        raise UsageError(f"no game has finished yet in the runs of {folder}")
    figure = new_figure(width=12 if len(counts) == 1 else 18)
    panels = figure.subplots(1, 2 if len(counts) == 1 else 3)
    panels[1].sharey(panels[0])
    draw_curves(panels[0], panels[1], curves)
    if len(counts) > 1:
        _draw_speed(panels[2], families, counts, result)
    figure.suptitle(experiment.title, fontsize=14, fontweight="bold", color="#222222")
    return figure


def _families(experiment: Experiment) -> list[list[Combination]]:
    """Groups the combinations that differ only in their number of learners, fewest learners first."""
    families: dict[str, list[Combination]] = {}
    for combination in experiment.combinations:
        families.setdefault(combination.family, []).append(combination)
    return [sorted(family, key=lambda c: c.learners) for family in families.values()]


def _draw_speed(axes: "Axes", families: list[list[Combination]], counts: list[int], result: dict[str, Any]) -> None:
    """Draws hours over learners if the paper has hours, else steps per second; both axes are logarithmic."""
    from matplotlib.ticker import LogLocator, NullLocator

    rows = {row["name"]: row for row in result["rows"]}
    measure = "hours" if any("hours" in row["paper"] for row in rows.values()) else "steps_per_second"
    for color, family in enumerate(families):
        look: dict[str, Any] = {"color": COLORS[color % len(COLORS)], "linewidth": 2}
        learners, own = [c.learners for c in family], [rows[c.name] for c in family]
        ours, theirs = [row[measure] for row in own], [row["paper"].get(measure) for row in own]
        axes.plot(learners, np.array(ours, float), "o-", **look)  # None becomes nan
        axes.plot(learners, np.array(theirs, float), "o--", markerfacecolor="white", **look)
    axes.set(xlabel="learners", ylabel=_time_for(measure, list(rows.values())) if measure == "hours" else "steps/s")
    axes.plot([], [], "o-", color="#777777", label="measured")
    if any(measure in row["paper"] for row in rows.values()):
        axes.plot([], [], "o--", color="#777777", markerfacecolor="white", label="paper")
    axes.legend(frameon=False)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    tidy(axes)
