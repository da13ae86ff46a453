"""Creates, clears and reopens a run's folder."""

import contextlib
import json
import logging
import os
import shlex
import shutil
import socket
import sys
import time
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from accel_rl.config.fields import flag_of, pick
from accel_rl.config.learners import launched_rank_info
from accel_rl.config.run_settings import CHANGEABLE, RunSettings
from accel_rl.config.sources import dump_yaml, overlay, read_settings
from accel_rl.envs.function_transfer import FUNCTION, MakeEnv, as_setting, missing_function
from accel_rl.envs.games.emulator_choice import is_ale_state, runs_grid_twin
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.devices import find_device
from accel_rl.run_folder import checkpoint, policy_file
from accel_rl.run_folder.atomic import sync_folder, write_file
from accel_rl.run_folder.checkpoint import CHECKPOINT, PREVIOUS
from accel_rl.settings.resolve import Config, resolve
from accel_rl.settings.sampler_kinds import SAMPLER_KINDS

logger = logging.getLogger("accel_rl")

ANY_MACHINE = {"device": "auto", "devices": None, "learners_per_gpu": 1, "cpus": "all", "workers": None}
"""Settings that replace those of the run's machine when it is opened on another one."""

OF_SAMPLERS = ("sampler", *(f.name for kind in SAMPLER_KINDS.values() if kind.Settings for f in fields(kind.Settings)))
"""The sampler's name, and the settings that only some samplers have."""

NOT_FINITE = "not_finite.txt"  # marks a run whose numbers were no longer finite, until its next checkpoint
CHANGEABLE_AFTER_FAILURE = ("learning_rate", "clip_grad_norm")  # such a run may also change these

TRACKER = "wandb"  # the folder within a run's folder where Weights & Biases keeps its files
JOB = "job.txt"  # names the learners that write to a run's folder, if torchrun started them
SEEN_WITHIN_S = 10.0  # the longest time until a network disk shows another machine's writes


def choose_folder(config: Config, out: str | Path | None) -> Path:
    """Returns the folder of a new run: out, or one named after the run and the time."""
    run = config.run
    name = f"{datetime.now():%Y%m%d-%H%M%S-%f}-s{run.seed}"
    return Path("results") / as_file_name(run.algo) / as_file_name(run.env) / name if out is None else Path(out)


def create(config: Config, folder: Path, overwrite: bool) -> None:
    """Makes a new run's folder, with config.yaml, policy.json and command.txt in it.

    Raises UsageError if it cannot be written, or holds a run and overwrite is not set."""
    settings = config.as_dict()
    description = policy_file.describe(settings, config.spec)
    try:
        if (folder / "config.yaml").exists():
            has_results = any((folder / name).exists() for name in (CHECKPOINT, "progress.csv"))
            ended_at_its_start = (folder / "command.txt").exists() and not has_results
            if not overwrite and not ended_at_its_start:
                resume = f"--resume {folder} to continue it, or " if (folder / CHECKPOINT).exists() else ""
                raise UsageError(f"{folder} already holds a run; use {resume}--overwrite")
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for above in folder.absolute().parents:  # some of them may also be new
            with contextlib.suppress(PermissionError):
                sync_folder(above)
        _write_settings(folder, settings)
        policy_file.write_description(folder, description)
        program = "accel-rl" if Path(sys.argv[0]).name in ("accel-rl", "__main__.py") else sys.argv[0]
        (folder / "command.txt").write_text(shlex.join([program, *sys.argv[1:]]) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write the run's folder {folder}: {error.strerror}") from None


def _clear(folder: Path) -> None:
    """Removes the files that a run writes; other files stay.

    Checkpoints are gone from the disk before other files, and settings go last. So an interruption leaves no checkpoint
    next to another run's settings."""
    results = [CHECKPOINT, PREVIOUS, "progress.csv"]
    others = [
        "command.txt", JOB, "log.txt", policy_file.DESCRIPTION, policy_file.LAST, policy_file.BEST,
        *policy_file.EXPORTED, NOT_FINITE, "summary.json", "final.json", "video.mp4", "learning_curve.png",
        "machine.json", "report.html", "config.yaml",
    ]  # fmt: skip
    for path in [*checkpoint.replay_files(folder), *(folder / name for name in results)]:
        path.unlink(missing_ok=True)
    sync_folder(folder)
    unfinished = [f"{name}.tmp" for name in (*results, *others)]
    for path in [*folder.glob("events.out.tfevents.*"), *(folder / name for name in (*unfinished, *others))]:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / TRACKER, ignore_errors=True)


def reopen(
    folder: Path,
    changes: dict[str, Any],
    out: str | Path | None,
    config_file: str | Path | None,
    trust: bool = False,
    make_env: MakeEnv | None = None,
) -> tuple[Config, dict[str, Any]]:
    """Returns a run's configuration and last checkpoint.

    changes: settings that differ from the run's. trust: loads even another user's checkpoint. make_env: the function
    that makes the run's environments, if they have no name. Raises UsageError if the checkpoint is missing, damaged or
    another user's, or for settings that would change the run."""
    saved = read_settings(folder)
    changes, function = _with_function(folder, saved, changes, make_env)
    if out is not None or config_file is not None:
        raise UsageError("a resumed run continues in its own folder with its own settings; omit --out and --config")
    state = checkpoint.load(folder / CHECKPOINT, trust=trust, parts=checkpoint.PARTS)
    is_elsewhere = launched_rank_info() or changes.keys() & {"device", "devices", "learners_per_gpu"}
    base = saved | ANY_MACHINE if is_elsewhere else saved
    if lacks_gpu(base | changes) and "simulator" not in changes:
        logger.warning("there is no GPU for simulator=cuda: the run goes on with native, from equal states")
        changes = changes | {"simulator": "native"}
    if "cuda" in (saved.get("simulator"), changes.get("simulator")):
        base = without_sampler(base)
    try:
        wanted = resolve(overlay(base, changes), spec=state["spec"], function=function)
    except UsageError:
        if others := [
            name for name in ("algo", "env", "preset") if changes.get(name, saved.get(name)) != saved.get(name)
        ]:
            raise _changes_run(others) from None  # its settings may not even exist for another algorithm
        raise
    samplers = [learner["sampler"] for learner in state["learners"]]
    envs = [env for each in samplers for env in each.get("envs") or ()]
    envs += [agent["env"] for each in samplers for agent in each.get("agents", {}).values()]  # --sampler queued
    was_ale = any(is_ale_state(env["simulator"]) for env in envs)
    if was_ale and wanted.run.simulator == "auto" and wanted.env.simulator == "native":
        wanted = replace(wanted, env=replace(wanted.env, simulator="ale"))  # its states need no conversion
    values = wanted.as_dict()
    lacking = sorted(values.keys() - saved.keys())
    if changed := [name for name in changed_settings(folder, saved, values) if name not in lacking]:
        raise _changes_run(changed)
    if lacking:
        raise UsageError(f"{folder / 'config.yaml'} lacks {', '.join(lacking)}: start a new run with --config")
    # Without a summary of these steps the run was killed after its last checkpoint, or its last evaluation was
    # interrupted: resuming it completes it.
    if wanted.run.steps <= state["steps"] <= summarized_steps(folder):
        raise UsageError(f"{folder} has {state['steps']} steps already; use --steps with more to continue")
    return replace(wanted, trust=trust), state


def _changes_run(names: list[str]) -> UsageError:
    """Returns the error for settings that a resumed run may not change."""
    flags = ", ".join(map(flag_of, names))
    way_out = ", or start a new run with --init-from" if {"algo", "env", "preset"} & {*names} else ""
    return UsageError(
        f"{flags} would change the run; only --steps and where it executes may differ (docs/resume.md){way_out}"
    )


def without_sampler(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings without the sampler, its workers and its own settings, which depend on the simulator."""
    return {name: value for name, value in settings.items() if name not in (*OF_SAMPLERS, "workers")}


def lacks_gpu(settings: dict[str, Any]) -> bool:
    """Tells whether these settings ask for simulator=cuda although the network runs on a CPU."""
    if settings.get("simulator") != "cuda" or runs_grid_twin():
        return False
    devices = str(settings.get("devices") or settings.get("device", "auto"))
    return "cpu" in devices or (devices == "auto" and find_device("auto") == "cpu")


def summarized_steps(folder: Path) -> int:
    """Returns the agent steps in a run's summary, which it writes when it ends; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((folder / "summary.json").read_text())["total_timesteps"])
    return 0


def _with_function(
    folder: Path, saved: dict[str, Any], changes: dict[str, Any], make_env: MakeEnv | None
) -> tuple[dict[str, Any], bytes | None]:
    """Returns the settings with the name of the environment's function, and the pickled function if it must be sent.

    Raises UsageError if the run needs such a function and none is given."""
    had_function = str(saved.get("env")).startswith(FUNCTION)
    if make_env is not None:
        name, function = as_setting(make_env, by_value=had_function)
        return changes | {"env": name}, function
    if had_function:
        raise missing_function(saved["env"], f"resume={str(folder)!r}, ")
    return changes, None


def is_finished(folder: Path, changes: dict[str, Any], trust: bool = False) -> bool:
    """Tells whether the run's last checkpoint and its summary have all the steps, and the last evaluation."""
    steps = pick(RunSettings, read_settings(folder) | changes).steps
    state = checkpoint.load(folder / CHECKPOINT, mapped=True, trust=trust, parts=("steps", "evaluation_due"))
    return bool(steps <= state["steps"] <= summarized_steps(folder) and not state["evaluation_due"])


def changed_settings(folder: Path, saved: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns the settings that differ from the saved ones although a resumed run may not change them."""
    has_failed = (folder / NOT_FINITE).exists()
    changeable = CHANGEABLE + (CHANGEABLE_AFTER_FAILURE if has_failed else ())
    if "cuda" in (saved.get("simulator"), values["simulator"]):
        changeable += OF_SAMPLERS
    return [name for name in values if values[name] != saved.get(name) and name not in changeable]


def prepare_resume(config: Config, folder: Path, state: dict[str, Any]) -> None:
    """Prepares a run's folder for a resume. Writes the settings; removes replays that no checkpoint needs, and the
    scores and the video of the former final policy.

    `keep_simulator` records another simulator once it has loaded the checkpoint's states."""
    saved = read_settings(folder)
    settings = config.as_dict() | {"simulator": saved.get("simulator", "auto"), "sampler": saved["sampler"]}
    _write_settings(folder, settings)
    policy_file.write_description(folder, policy_file.describe(settings, config.spec))
    kept = [*checkpoint.replay_names(state), *checkpoint.replays_of_previous(folder, config.trust)]
    for path in checkpoint.replay_files(folder):  # left by a checkpoint that was never completed
        if path.name not in kept:
            path.unlink()
    for name in ("final.json", "video.mp4"):
        (folder / name).unlink(missing_ok=True)


def keep_simulator(config: Config, folder: Path) -> None:
    """Records a resumed run's simulator, and the sampler that goes with it, in config.yaml."""
    settings = read_settings(folder)
    if settings.get("simulator") != config.run.simulator:
        _write_settings(folder, settings | {"simulator": config.run.simulator, "sampler": config.run.sampler})


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    text = dump_yaml(settings)
    write_file(folder / "config.yaml", text.encode(), "settings")


# ---- a folder that the learners of torchrun share, perhaps from several machines ----


def launcher_id() -> str:
    """Returns an identifier of the parent process that is unique over all machines and times."""
    parent = os.getppid()
    if sys.platform == "linux":  # relative to boot, since a time of day changes when the clock is set
        start = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    else:
        start = f"{psutil.Process(parent).create_time():.0f}"
    return f"{socket.gethostname()}:{parent}:{start}"


@dataclass(frozen=True)
class Job:
    """The learners that torchrun has started together.

    name: torchrun's --rdzv-id ("none" without one). token: a text that only they know. launchers: their launcher_ids.
    """

    name: str
    token: str
    launchers: tuple[str, ...]

    def owns(self, folder: Path) -> bool:
        """Tells whether a job of this name, or with one of these launchers, was the last to write to the folder."""
        name, *token_and_launchers = _read(folder) or ["none"]
        return name == self.name != "none" or not set(token_and_launchers).isdisjoint(self.launchers)

    def claim(self, folder: Path) -> None:
        """Marks the folder as this job's."""
        (folder / JOB).write_text("\n".join((self.name, self.token, *self.launchers)) + "\n")

    def wait_until_visible(self, folder: Path) -> None:
        """Waits until this machine sees learner 0's mark. Raises UsageError if it does not appear."""
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not self._has(folder):
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{folder.absolute()} is not the folder where learner 0 has just written {JOB}; the run's folder "
                    "must be on a disk that all machines share (use an absolute path for --out)"
                )
            time.sleep(0.1)

    def check_owner(self, folder: Path) -> None:
        """Raises RunError if another job has taken over the folder; torchrun may have believed these learners dead."""
        if not self._has(folder):
            raise RunError(
                f"other learners have taken over {folder} (see its {JOB}); these end without changing its checkpoint"
            )

    def _has(self, folder: Path) -> bool:
        return self.token in _read(folder)


def _read(folder: Path) -> list[str]:
    try:
        return (folder / JOB).read_text().splitlines()
    except OSError:
        return []


def as_file_name(name: str) -> str:
    """Replaces each character that file names should not have with an underscore."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
