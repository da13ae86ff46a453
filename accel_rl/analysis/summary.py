"""What the console shows once a run is over."""

import json
import shlex
from pathlib import Path

from accel_rl.analysis.plot import plot_runs
from accel_rl.errors import UsageError
from accel_rl.training.log import command


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
    print(f"make a video    {command()} record {run} --out {video}")
