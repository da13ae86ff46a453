"""A run's folder: begun, cleared, opened again to go on."""

import os
import shlex
import socket
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

from accel_rl.config.learners import launched_rank_info
from accel_rl.config.presets import overlay
from accel_rl.errors import RunError, UsageError
from accel_rl.training import checkpoint, finite_guard
from accel_rl.training.checkpoint import BEST, CHECKPOINT, PREVIOUS, REPLAYS
from accel_rl.training.resolve import Config, read_run, resolve

# What a resumed run may have otherwise: how far it goes, and what it runs on.
MAY_CHANGE = (
    "steps",
    "device",
    "devices",
    "learners_per_gpu",
    "learner_timeout_s",
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

JOB = "job.txt"  # in a run's folder: which learners write there, if a launcher has started them
SEEN_WITHIN_S = 10.0


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
        JOB,
        "progress.csv",
        "log.txt",
        CHECKPOINT,
        PREVIOUS,
        BEST,
        finite_guard.MARK,
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
    is_elsewhere = launched_rank_info() or given.keys() & {"device", "devices", "learners_per_gpu"}
    base = saved | ANYWHERE if is_elsewhere else saved
    wanted = resolve(overlay(base, given), spec=state["spec"])
    values = wanted.as_dict()
    if changed := changed_settings(folder, saved, values):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"{flags} would change the run; a resumed run takes only --steps")
    if wanted.run.steps <= state["steps"]:
        raise UsageError(f"{folder} has {state['steps']} steps already; use --steps with more to go on")
    return wanted, state


def is_finished(folder: Path, given: dict[str, Any]) -> bool:
    """Whether the run's checkpoint has all the steps that it is to have."""
    steps = given.get("steps") or read_run(folder)["steps"]
    return bool(checkpoint.load(folder / CHECKPOINT, mapped=True)["steps"] >= int(steps))


def changed_settings(folder: Path, saved: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """The settings that would make another run of the one in the folder, begun with those that are saved."""
    may_change = MAY_CHANGE + (finite_guard.MAY_CHANGE if (folder / finite_guard.MARK).exists() else ())
    return [name for name in values if values[name] != saved.get(name) and name not in may_change]


def go_on(config: Config, folder: Path, state: dict[str, Any]) -> None:
    """Begins to write to a run's folder again."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))
    kept = [*checkpoint.replay_names(state), *checkpoint.replays_of_previous(folder)]
    for path in folder.glob(REPLAYS):  # of a checkpoint that was never completed
        if path.name not in kept:
            path.unlink()


# ---- a folder that learners of a launcher share, on several machines perhaps ----


def launcher() -> str:
    """The process that has started this one, unlike any before or after it."""
    parent = psutil.Process(os.getppid())
    return f"{socket.gethostname()}:{parent.pid}:{parent.create_time():.0f}"


@dataclass(frozen=True)
class Job:
    """The learners that a launcher has started together. name: torchrun's --rdzv-id ("none": it has none); token: what
    only they know; launchers: of each of them."""

    name: str
    token: str
    launchers: tuple[str, ...]

    def goes_on_in(self, folder: Path) -> bool:
        """Whether a job of this name, or with one of these launchers, has last written to the folder."""
        name, _, *launchers = _read(folder) or ("none", "")
        return name == self.name != "none" or not set(launchers).isdisjoint(self.launchers)

    def take_over(self, folder: Path) -> None:
        (folder / JOB).write_text("\n".join((self.name, self.token, *self.launchers)) + "\n")

    def wait_to_see(self, folder: Path) -> None:
        """Raises UsageError if what learner 0 has written is not here: a network's disk may take some seconds."""
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not self._has(folder):
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{folder.absolute()} is not the folder where learner 0 has just written {JOB}; the run's folder "
                    "must be on a disk that all machines share (--out is best an absolute path)"
                )
            time.sleep(0.1)

    def check_has(self, folder: Path) -> None:
        """Raises RunError if other learners go on with the run: a launcher may have taken these for dead."""
        if not self._has(folder):
            raise RunError(
                f"other learners have taken over {folder} (see its {JOB}): these here must have been cut off from "
                "them, and leave its checkpoint alone"
            )

    def _has(self, folder: Path) -> bool:
        return self.token in _read(folder)


def _read(folder: Path) -> list[str]:
    try:
        return (folder / JOB).read_text().splitlines()
    except OSError:
        return []


def _as_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
