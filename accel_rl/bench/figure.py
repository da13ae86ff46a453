"""Draws Figure 2 of Stooke & Abbeel 2018: sampling speed per core over the number of simulators per core."""

from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator

from accel_rl.analysis.plot import COLORS, new_figure, save, tidy

LINES = {"process": ("--", "one bare process"), "hyperthreads": (":", "one bare process per hyperthread")}


def draw_sampling(result: dict[str, Any], out: Path) -> None:
    """Draws the points in result["figure_2"] into out (.png), 1050 x 675 pixels.

    result: as accel_rl.bench.sampling.run returns it."""
    points, options = result["figure_2"], result["options"]
    figure = new_figure(width=10.5, height=6.75)
    axes = figure.subplots()
    curves = [point for point in points if point["kind"] == "sampler"]
    for index, cores in enumerate(sorted({point["cores"] for point in curves})):
        curve = [point for point in curves if point["cores"] == cores]
        axes.plot(
            [point["per_core"] for point in curve],
            [point["steps_per_second_per_core"] for point in curve],
            "o-",
            color=COLORS[index % len(COLORS)],
            label=f"{cores} core" + ("s" if cores > 1 else ""),
        )
    for kind, (style, label) in LINES.items():
        for point in points:
            if point["kind"] == kind:
                axes.axhline(point["steps_per_second_per_core"], color="#444444", linestyle=style, label=label)
    tidy(axes)
    ticks = sorted({point["per_core"] for point in curves})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set(xlabel="simulators per core", ylabel="samples per second and core")
    axes.set_title(
        f"{options['env']} ({options['env_preset']}), A3C-Net on {options['device']}", loc="left", fontweight="bold"
    )
    axes.set_title(result["machine"]["cpu"], loc="right", fontsize=7, color="#666666")
    num_entries = len(axes.get_legend_handles_labels()[0])
    figure.legend(loc="outside lower center", ncols=min(num_entries, 4), frameon=False)
    save(figure, out)
