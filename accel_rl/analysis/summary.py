"""What the console shows once a run is over."""

import json
import shlex
from pathlib import Path

from accel_rl.analysis.plot import plot_runs
from accel_rl.errors import UsageError
from accel_rl.training.log import command
from accel_rl.training.run_directory import read_settings
from accel_rl.training.trust import foreign_code


def print_summary(folder: Path) -> None:
    """Draws a run's learning curve; prints its score and speed, where its files are, and how to make a video."""
    picture = folder / "learning_curve.png"
    try:
        plot_runs([folder], picture)
    except UsageError as error:
        picture = Path(f"none: {error}")
    summary = json.loads((folder / "summary.json").read_text())
    score = summary["ep_rew_mean"]
    print(f"score           {'no game finished' if score is None else f'{score:.1f}'}")
    print(f"steps           {summary['total_timesteps']:,} at {summary['fps']:,.0f} steps/s")
    print(f"run folder      {folder}")
    print(f"learning curve  {picture}")
    run, video = shlex.quote(str(folder)), shlex.quote(str(folder / "video.mp4"))
    trust = " --trust" if foreign_code(read_settings(folder)) else ""
    print(f"make a video    {command()} record {run} --out {video}{trust}")
