"""Starts a run: in this process, in a process for each learner, or as the one learner that torchrun has started."""

import os
import socket
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from accel_rl.config.learners import RankInfo, launched_rank_info
from accel_rl.distributed.async_coordinator import AsyncCoordinator, Control
from accel_rl.distributed.learner_process import learn
from accel_rl.distributed.supervisor import supervise
from accel_rl.distributed.sync_coordinator import SyncCoordinator, peer_failure_message, process_group
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.signals import StopSignal
from accel_rl.training.build import build_store, check
from accel_rl.training.checkpoint import CHECKPOINT
from accel_rl.training.coordinator import SingleLearner
from accel_rl.training.log import close_log, logger, open_log
from accel_rl.training.resolve import Config, resolve
from accel_rl.training.run_directory import Job, create, go_on, is_finished, launcher, reopen
from accel_rl.version import __version__

State = dict[str, Any]
SIGNALS_WITHIN_S = 3.0  # of each other, launchers of several machines pass a signal on


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
        if rank_info := launched_rank_info():
            launched = record(_learn_launched)  # torchrun's own report of a failure then shows its message
            folder = cast(Path, launched(rank_info, given, out, config, resume, overwrite, stop, show))
        else:
            resolved, state = _open(given, out, config, resume)
            folder = _begin(resolved, state, out, resume, overwrite)
            if resolved.rank_info.size > 1:
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
        learn(config, folder, SingleLearner(steps), stop, state, show)
        return
    control, store = Control(1), build_store(config, state)
    control.begin(steps)
    try:
        learn(config, folder, AsyncCoordinator(0, 1, control), stop, state, show, store)
    finally:
        store.close()
        control.memory.close()


# ---- one learner of those that torchrun has started, on one machine or several ----


def _learn_launched(
    rank_info: RankInfo, given: State, out: Any, config: Any, resume: Any, overwrite: bool, stop: StopSignal, show: bool
) -> Path:
    with process_group(rank_info.rank, rank_info.size, None, torch.cuda.is_available()):
        coordinator = SyncCoordinator(rank_info.rank, rank_info.size)
        if (agreed := _agree(coordinator, given, out, config, resume, overwrite)) is None:
            return Path(resume or out)
        resolved, folder, state, check = agreed
        coordinator.begin(state["steps"] if state else 0, resolved.learners.learner_timeout_s, check)

        def run() -> None:
            try:
                learn(resolved, folder, coordinator, stop, state, show)
            except (RunError, UsageError) as error:
                raise type(error)(f"{me}: {error}") from None
            except RuntimeError as error:
                if (loss := peer_failure_message(error)) is None:
                    raise
                raise RunError(f"{me} has lost another one, whose own messages may say why: {loss}") from None
            if coordinator.steps < resolved.run.steps:
                _hear_why(stop)
                if not stop:
                    raise RunError(f"{me} has stopped at step {coordinator.steps} with another one that was asked to")

        me = f"learner {rank_info.rank} on {socket.gethostname()}"
        _logged(folder, show, rank_info.rank, run)
    return folder


def _hear_why(stop: StopSignal) -> None:
    """Stopped with others, this learner is likely to get a signal itself: then its launcher does not blame it."""
    deadline = time.monotonic() + SIGNALS_WITHIN_S
    while not stop and time.monotonic() < deadline:
        time.sleep(0.05)


def _agree(
    coordinator: SyncCoordinator, given: State, out: Any, config: Any, resume: Any, overwrite: bool
) -> tuple[Config, Path, State | None, Callable[[], None]] | None:
    """The same run for all learners, in a folder that all of them see; after a restart from its last checkpoint. Last,
    what raises RunError once other learners have taken the folder over. None if the run was finished before a restart.

    Raises UsageError, in all of them, where learners have other versions or settings."""
    if (name := resume or out) is None:
        raise UsageError("with torchrun, name the run's folder by --out DIR: a restarted run goes on from there")
    folder = Path(name)
    job = Job(
        os.environ.get("TORCHELASTIC_RUN_ID", "none"), uuid.uuid4().hex, tuple(coordinator.all_gather(launcher()))
    )
    job = coordinator.all_gather(job)[0]
    if coordinator.all_gather(coordinator.rank == 0 and job.goes_on_in(folder))[0]:
        overwrite = True  # what had begun without coming to a checkpoint
        if coordinator.all_gather(coordinator.rank == 0 and (folder / CHECKPOINT).exists())[0]:
            out, config, resume = None, None, folder
            if coordinator.all_gather(coordinator.rank == 0 and is_finished(folder, given))[0]:
                return None
    resolved, state = _all(coordinator, lambda: _open(given, out, config, resume))
    versions = {"accel_rl": __version__, "torch": torch.__version__}
    begins = {"the checkpoint's steps": state["steps"] if state else 0}
    _compare(coordinator.all_gather((socket.gethostname(), versions | resolved.as_dict() | begins)))

    def begin() -> None:
        if coordinator.rank == 0:
            _begin(resolved, state, out, resume, overwrite)
            job.take_over(folder)

    _all(coordinator, begin)
    _all(coordinator, lambda: job.wait_to_see(folder))
    return resolved, folder, state, partial(job.check_has, folder)


def _all(coordinator: SyncCoordinator, do: Callable[[], Any]) -> Any:
    """What do() returns. If it raises UsageError in some learners, all raise that of the first one."""
    result, trouble = None, ""
    try:
        result = do()
    except UsageError as error:
        trouble = str(error)
    for rank, (host, text) in enumerate(coordinator.all_gather((socket.gethostname(), trouble))):
        if text:
            raise UsageError(f"learner {rank} on {host}: {text}" if rank else text)
    return result


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
