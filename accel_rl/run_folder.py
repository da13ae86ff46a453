"""A run's folder: begun, cleared, opened again to go on."""

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from accel_rl import checkpoint, finite
from accel_rl.checkpoint import BEST, CHECKPOINT, REPLAYS
from accel_rl.config import Config, overlay, read_run, resolve
from accel_rl.errors import UsageError

# What a resumed run may have otherwise: how far it goes, and what it runs on.
MAY_CHANGE = (
    "steps",
    "device",
    "devices",
    "learners_per_gpu",
    "share_processors",
    "workers",
    "cpus",
    "sampling_threads",
    "learning_threads",
    "env_timeout_s",
    "env_build_timeout_s",
    "replay_device",
    "checkpoint_replay",
)

ANYWHERE = {"device": "auto", "devices": None, "learners_per_gpu": 1, "cpus": "all", "workers": None}
"""Settings in place of those of the machine that a run was on."""


def create(config: Config, out: str | Path | None, overwrite: bool) -> Path:
    """A new run's folder, with config.yaml and command.txt in it."""
    run = config.run
    if out is None:
        name = f"{datetime.now():%Y%m%d-%H%M%S-%f}-s{run.seed}"
        out = Path("results") / _as_file_name(run.algo) / _as_file_name(run.env) / name
    folder = Path(out)
    try:
        if (folder / "config.yaml").exists():
            if not overwrite:
                raise UsageError(f"{folder} already holds a run; use --resume {folder} to continue it, or --overwrite")
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))
        program = "accel-rl" if Path(sys.argv[0]).name in ("accel-rl", "__main__.py") else sys.argv[0]
        (folder / "command.txt").write_text(shlex.join([program, *sys.argv[1:]]) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write the run's folder {folder}: {error.strerror}") from None
    return folder


def _clear(folder: Path) -> None:
    """Removes what a run writes, and nothing else that may lie in the folder."""
    names = (
        "config.yaml",
        "command.txt",
        "progress.csv",
        "log.txt",
        CHECKPOINT,
        BEST,
        finite.MARK,
        "summary.json",
        "learning_curve.png",
    )
    others = [path for pattern in ("events.out.tfevents.*", REPLAYS, "*.pt.tmp") for path in folder.glob(pattern)]
    for path in [*(folder / name for name in names), *others]:
        path.unlink(missing_ok=True)


def reopen(
    folder: Path, given: dict[str, Any], out: str | Path | None, config_file: str | Path | None
) -> tuple[Config, dict[str, Any]]:
    """A run's configuration and last checkpoint. Raises UsageError for a folder without, or for changed settings."""
    saved = read_run(folder)
    if out is not None or config_file is not None:
        raise UsageError("a resumed run goes on in its own folder with its own settings; leave --out and --config away")
    state = checkpoint.load(folder / CHECKPOINT)
    base = saved | ANYWHERE if given.keys() & {"device", "devices", "learners_per_gpu"} else saved
    wanted = resolve(overlay(base, given), spec=state["spec"])
    values = wanted.as_dict()
    if changed := changed_settings(folder, saved, values):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"{flags} would change the run; a resumed run takes only --steps")
    if wanted.run.steps <= state["steps"]:
        raise UsageError(f"{folder} has {state['steps']} steps already; use --steps with more to go on")
    return wanted, state


def changed_settings(folder: Path, saved: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """The settings that would make another run of the one in the folder, begun with those that are saved."""
    may_change = MAY_CHANGE + (finite.MAY_CHANGE if (folder / finite.MARK).exists() else ())
    return [name for name in values if values[name] != saved.get(name) and name not in may_change]


def go_on(config: Config, folder: Path, state: dict[str, Any]) -> None:
    """Begins to write to a run's folder again."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))
    named = [learner["replay"] for learner in state["learners"]]
    for path in folder.glob(REPLAYS):  # of a checkpoint that was not finished any more
        if path.name not in named:
            path.unlink()


def _as_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
