"""Draws the benchmark of emulators: frames and steps per second by game, and the ratios."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from accel_rl.analysis.plot import COLORS

Row = dict[str, Any]
BLUE, ORANGE, GREEN, _, YELLOW, LIGHT_BLUE, GREY = COLORS
LIGHT_ORANGE = "#f2a97e"
RAW_COLORS = {"ale-py": ORANGE, "ours, no frame drawn": BLUE, "ours, every 4th frame drawn": LIGHT_BLUE}
VECTOR_COLORS = {
    "our sampler": BLUE,
    "our AtariVectorEnv": LIGHT_BLUE,
    "ale-py's AtariVectorEnv": ORANGE,
    "EnvPool": YELLOW,
}
STEP_COLORS = {"ale": [ORANGE, LIGHT_ORANGE], "native": [BLUE, LIGHT_BLUE]}
BAR_INCHES, GAP_BARS = 0.14, 1.3  # height of a bar; space between two groups of bars, in bars
LEGEND_INCHES = 0.5


class Bar(NamedTuple):
    """A contestant's rate; note: its ratio to another one, or "" if it is the other one."""

    label: str
    color: str
    rate: float
    note: str = ""


class Panel(NamedTuple):
    """Groups of bars by what stands beside them: the game, maybe with the size of frames."""

    title: str
    unit: str
    groups: dict[str, list[Bar]]


def draw_emulator(result: Row, out: Path) -> None:
    """Draws what accel_rl.bench.emulator.run returns into out (.png): a panel each for `raw`, `steps` and `vector`, as
    far as they were measured. Draws nothing if none was."""
    rows = {part: [row for row in result["contests"] if row["part"] == part] for part in ("raw", "steps", "vector")}
    panels = [make(rows[part]) for part, make in PANELS.items() if rows[part]]
    if not panels:
        return
    bars_height = BAR_INCHES * max(sum(len(bars) + GAP_BARS for bars in panel.groups.values()) for panel in panels)
    heights = [max(bars_height, 1.0) + 1.0, LEGEND_INCHES]
    figure = Figure((5.2 * max(len(panels), 1.5), sum(heights)), dpi=120, layout="constrained", facecolor="white")
    above, below = figure.subplots(2, len(panels), squeeze=False, height_ratios=heights)
    for axes, legend_axes, panel in zip(above, below, panels, strict=True):
        _draw_panel(axes, panel)
        legend_axes.axis("off")
        legend_axes.legend(
            *axes.get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False, fontsize=8, borderaxespad=0
        )
    machine, missing = result["machine"], ", ".join(result["missing_peers"])
    versions = f"ale-py {machine['packages'].get('ale-py')}" + (f"; not installed: {missing}" if missing else "")
    figure.suptitle(f"{machine['cpu']}, cores: {machine['cores']}; {versions}", fontsize=8, color="#666666")
    figure.savefig(out)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    y, ticks, labelled = 0.0, [], set()
    for bars in panel.groups.values():
        ticks.append(y + (len(bars) - 1) / 2)
        for bar in bars:
            axes.barh(y, bar.rate, height=0.9, color=bar.color, label=None if bar.label in labelled else bar.label)
            axes.annotate(bar.note, (bar.rate, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
            labelled.add(bar.label)
            y += 1
        y += GAP_BARS
    axes.set_yticks(ticks, list(panel.groups))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y - GAP_BARS, -1)  # the first game is on top
    axes.margins(x=0.14)  # space for the notes
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(panel.unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")


def _raw_panel(rows: Sequence[Row]) -> Panel:
    names = dict(zip(("ale", "undrawn", "every-4th"), RAW_COLORS.items(), strict=True))
    groups = {
        row["game"]: [
            Bar(label, color, row["medians"][name], _note(row, f"{name} / ale"))
            for name, (label, color) in names.items()
        ]
        for row in rows
    }
    return Panel("Emulation only, one core", "frames per second (ratio to ale-py)", groups)


def _steps_panel(rows: Sequence[Row]) -> Panel:
    sizes = list(dict.fromkeys(row["frames"] for row in rows))
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        for name, shades in STEP_COLORS.items():
            color = shades[sizes.index(row["frames"]) % len(shades)]
            bar = Bar(f"{name}, {row['frames']}", color, row["medians"][name], _note(row, f"{name} / ale"))
            groups.setdefault(row["game"], []).append(bar)
    return Panel("Agent steps, ale and native, one core", "steps per second (ratio to ale)", groups)


def _vector_panel(rows: Sequence[Row]) -> Panel:
    groups = {}
    for row in rows:
        bars = []
        for kind, (label, color) in zip(("sampler", "own", "ale", "envpool"), VECTOR_COLORS.items(), strict=True):
            rates = [rate for name, rate in row["medians"].items() if name.split("-")[0] == kind]
            notes = [_note(row, ratio) for ratio in row["ratios"] if ratio.startswith(f"{kind} / ")]
            if rates:
                bars.append(Bar(label, color, max(rates), *notes))
        groups[f"{row['game']}\n{row['frames']}"] = bars
    unit = "steps per second (our sampler: ratio to the best peer;\nour AtariVectorEnv: to ale-py's)"
    return Panel("Vector environments, all cores, random actions", unit, groups)


def _note(row: Row, ratio: str) -> str:
    return f"{row['ratios'][ratio]['median']:.2f}" if ratio in row["ratios"] else ""


PANELS = {"raw": _raw_panel, "steps": _steps_panel, "vector": _vector_panel}
