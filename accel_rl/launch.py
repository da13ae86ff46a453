"""Starts a run: in this process, in a process for each learner, or as the one learner that torchrun has started."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from accel_rl import __version__
from accel_rl.build import build_store, check
from accel_rl.checkpoint import CHECKPOINT
from accel_rl.config import Config, resolve
from accel_rl.errors import UsageError
from accel_rl.interrupt import StopSignal
from accel_rl.learner import learn
from accel_rl.learners import launched_place
from accel_rl.logs import close_log, logger, open_log
from accel_rl.run_folder import create, go_on, reopen
from accel_rl.supervisor import supervise
from accel_rl.team import Alone, Apart, Control, Together, process_group

State = dict[str, Any]


def train(
    algo: str | None = None,
    env: str | None = None,
    steps: int | None = None,
    *,
    out: str | Path | None = None,
    config: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    show: bool = False,
    **settings: Any,
) -> Path:
    """Trains, and returns the run's folder. Every setting of `accel-rl train --help` can be given by its field name.

    out: the run's folder; config: a YAML file of settings; resume: a run's folder to continue, up to `steps`.
    show: progress on the console. Raises UsageError for settings that are wrong or don't fit together, RunError if the
    run fails; KeyboardInterrupt after SIGINT and SystemExit after SIGTERM, once a checkpoint is written.
    """
    named = {"algo": algo, "env": env, "steps": steps}
    given = {**{name: value for name, value in named.items() if value is not None}, **settings}
    with StopSignal() as stop:
        if place := launched_place():
            with process_group(place.rank, place.size, None, torch.cuda.is_available()):
                team = Together(place.rank, place.size)
                resolved, folder, state = _agree(team, given, out, config, resume, overwrite)
                team.begin(state["steps"] if state else 0)
                _logged(folder, show, place.rank, lambda: learn(resolved, folder, team, stop, state, show))
        else:
            resolved, state = _open(given, out, config, resume)
            folder = _begin(resolved, state, out, resume, overwrite)
            if resolved.place.size > 1:
                _logged(folder, False, 0, lambda: supervise(resolved, folder, state, stop, show))
            else:
                _logged(folder, show, 0, lambda: _learn_alone(resolved, folder, state, stop, show))
    stop.leave()
    return folder


def _open(given: State, out: Any, config: Any, resume: Any) -> tuple[Config, State | None]:
    """What is to be trained, and from where. Writes nothing."""
    state = None
    if resume is not None:
        resolved, state = reopen(Path(resume), given, out, config)
    else:
        resolved = resolve(given, Path(config) if config else None)
    check(resolved)
    return resolved, state


def _begin(config: Config, state: State | None, out: Any, resume: Any, overwrite: bool) -> Path:
    if state is None:
        return create(config, out, overwrite)
    go_on(config, Path(resume), state)
    return Path(resume)


def _logged(folder: Path, show: bool, rank: int, run: Callable[[], None]) -> None:
    handlers = open_log(folder, show, rank)
    try:
        run()
    except Exception as error:
        logger.error("%s", error)
        raise
    finally:
        close_log(handlers)


def _learn_alone(config: Config, folder: Path, state: State | None, stop: StopSignal, show: bool) -> None:
    steps = state["steps"] if state else 0
    if not config.is_central:
        learn(config, folder, Alone(steps), stop, state, show)
        return
    control, store = Control(1), build_store(config, state)
    control.begin(steps)
    try:
        learn(config, folder, Apart(0, 1, control), stop, state, show, store)
    finally:
        store.close()


# ---- one learner of those that torchrun has started, on one machine or several ----


def _agree(
    team: Together, given: State, out: Any, config: Any, resume: Any, overwrite: bool
) -> tuple[Config, Path, State | None]:
    """The same run for all learners, in a folder that all of them see; after a restart from its last checkpoint.

    Raises UsageError where learners have other versions or settings."""
    if (name := resume or out) is None:
        raise UsageError("with torchrun, name the run's folder by --out DIR: a restarted run goes on from there")
    folder = Path(name)
    was_restarted = any(team.share(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0))
    if was_restarted:
        overwrite = True  # what had begun without coming to a checkpoint
        if team.share((folder / CHECKPOINT).exists())[0]:
            out, config, resume = None, None, folder
    resolved, state = _open(given, out, config, resume)
    versions = {"accel_rl": __version__, "torch": torch.__version__}
    _compare(team.share((socket.gethostname(), versions | resolved.as_dict())))
    trouble = ""
    if team.rank == 0:
        try:
            _begin(resolved, state, out, resume, overwrite)
        except UsageError as error:
            trouble = str(error)
    if trouble := team.share(trouble)[0]:
        raise UsageError(trouble)
    return resolved, folder, state


def _compare(learners: list[tuple[str, State]]) -> None:
    first_host, first = learners[0]
    for rank, (host, other) in enumerate(learners):
        for name in {**first, **other}:
            ours, theirs = first.get(name), other.get(name)
            if ours != theirs:
                raise UsageError(
                    f"learner {rank} on {host} has {name}={theirs}, but learner 0 on {first_host} has {ours}; "
                    "start all with the same version and settings"
                )
