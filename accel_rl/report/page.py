"""Makes a page about runs: one HTML file with figures, the script that draws them, and videos if they are small."""

import base64
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from accel_rl.analysis.plot import Curve, group_runs
from accel_rl.analysis.scores import compare, human_scores
from accel_rl.envs.games.atari import game_name
from accel_rl.errors import RunError, UsageError, needs_extra
from accel_rl.report.figures import MAX_POINTS, Figure, learning_curves, performance_profiles, shares, speeds
from accel_rl.report.record import RunRecord, find_records, read_record
from accel_rl.run_folder.atomic import write_file
from accel_rl.run_folder.lock import is_being_written
from accel_rl.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE = "report.html"
EMBEDDED_VIDEO_BYTES = 20_000_000  # all videos inside a page together; it links to the others


def print_page(run_dir: Path) -> None:
    """Writes the page of a run that has just ended into its folder; prints the file's name, or why there is none."""
    try:
        write_page([run_dir], run_dir / PAGE)
        print(f"report          {run_dir / PAGE}")
    except (UsageError, RunError) as error:
        print(f"report          none: {error}")


def write_page(paths: Sequence[Path], out: Path) -> None:
    """Writes a page about the runs in these folders, each a run's or an experiment's; the whole page or nothing.

    Raises UsageError if a folder holds no run or a damaged one, for runs of several environments outside of an
    experiment, or if Plotly is missing; RunError if the page cannot be written."""
    page = make_page(paths, lambda records: _videos(records, out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None
    write_file(out, page.encode(errors="replace"), "page")


def make_page(
    paths: Sequence[Path],
    find_videos: Callable[[Sequence[RunRecord]], dict[Path, str]],
    read: Callable[[Path], RunRecord] = read_record,
    is_live: bool = False,
) -> str:
    """Returns the page as HTML. find_videos: returns the addresses of the runs' videos, by folder. read: reads a run's
    folder. is_live: a server has the scripts that draw figures and update the page; else the page holds everything."""
    records, problems = find_records(paths, read)
    templates, plotly = load_templates(), load_plotly()
    most = max(50, MAX_POINTS // (8 * len(records)))
    figures: dict[str, Figure] = {}
    sections: list[dict[str, Any]] = []
    for env in dict.fromkeys(record.env for record in records):
        of_env = [record for record in records if record.env == env]
        curves = group_runs([record.run for record in of_env])
        over_steps, over_time = learning_curves(curves, most)
        drawn = {"over_steps": over_steps, "over_time": over_time}
        drawn |= {"shares": shares(curves), "speeds": speeds(curves, most)}
        figures |= {f"{name}-{len(sections)}": figure for name, figure in drawn.items()}
        rows = [_row(curve, of_env) for curve in curves]
        sections.append({"env": env, "rows": rows, "settings": _settings(curves)})
    scored = [each for each in records if each.run.score.value.size and game_name(each.env) in human_scores()]
    comparisons = compare([record.folder for record in scored]) if len(scored) > 1 else []
    if comparisons:
        figures["profiles"] = performance_profiles(comparisons)
    envs = [section["env"] for section in sections]
    title = f"{envs[0] if len(envs) == 1 else paths[0].resolve().name}: {len(records)} runs"
    if len(records) == 1:
        title = f"{records[0].run.config['algo']} on {envs[0]}, seed {records[0].run.config['seed']}"
    return templates.get_template("page.html").render(
        title=title,
        version=__version__,
        problems=problems,
        sections=sections,
        comparisons=comparisons,
        records=records,
        videos=find_videos(records),
        figures=figures,
        plotly=plotly,
        is_live=is_live,
        running={record.folder for record in records if is_live and is_being_written(record.folder)},
    )


def load_plotly() -> str:
    """Returns Plotly's script, which draws figures."""
    with needs_extra("a page", "report"):
        from plotly.offline import get_plotlyjs
    return str(get_plotlyjs())


def load_templates(*folders: Path) -> "Environment":
    """Returns the templates of pages, from this file's folder and others."""
    with needs_extra("a page", "report"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, *folders]),
        autoescape=True,  # names, settings and logs are users' texts
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "duration": _duration}
    return environment


# ---- tables ----


def _row(curve: Curve, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Returns the row of the table of scores for a curve's runs."""
    own = [record for record in records if any(record.run is run for run in curve.runs)]
    return {
        "label": curve.label,
        "color": curve.color,
        "runs": len(own),
        "finished": sum(record.is_finished for record in own),
        "steps": _number(fmean(record.steps for record in own)),
        "training": _spread([record.last("rollout/ep_rew_mean") for record in own]),
        "evaluation": _spread([record.last("eval/mean_reward") for record in own]),
        "final": _spread([record.final.get("mean_reward") for record in own]),
        "speed": _spread([record.steps / record.seconds if record.seconds else None for record in own]),
    }


def _spread(values: Sequence[float | None]) -> str:
    """Returns the mean of the values that are not None, with the standard deviation if several differ."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {_number(stdev(known))}" if len(set(known)) > 1 else ""
    return _number(fmean(known)) + spread


def _settings(curves: Sequence[Curve]) -> dict[str, dict[str, list[str]]]:
    """Returns each setting's values by curve, in two groups: settings that differ between runs, and others."""
    runs = [run for curve in curves for run in curve.runs]
    tables: dict[str, dict[str, list[str]]] = {"differing": {}, "same": {}}
    for name in dict.fromkeys(name for run in runs for name in run.config):
        by_curve = [[str(run.config.get(name, "-")) for run in curve.runs] for curve in curves]
        differs = len({value for values in by_curve for value in values}) > 1
        cells = [", ".join(dict.fromkeys(values)) for values in by_curve]
        tables["differing" if differs else "same"][str(name)] = cells if differs else cells[:1]
    return tables


def _videos(records: Sequence[RunRecord], out: Path) -> dict[Path, str]:
    """Returns the address of each run's video: a data URL until EMBEDDED_VIDEO_BYTES are used up, then the file's."""
    addresses, left = dict[Path, str](), EMBEDDED_VIDEO_BYTES
    for folder, video in ((record.folder, record.video) for record in records):
        if video is None:
            continue
        if (size := video.stat().st_size) <= left:
            left -= size
            addresses[folder] = "data:video/mp4;base64," + base64.b64encode(video.read_bytes()).decode()
        else:
            addresses[folder] = quote(os.path.relpath(video.resolve(), out.resolve().parent))
    return addresses


def _number(value: float) -> str:
    """Formats a number with about four digits, a large one with all its digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _duration(seconds: float) -> str:
    for unit, unit_s in (("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"
