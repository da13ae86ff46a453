"""Trains as one of the learners that torchrun has started. They agree on a run, and train synchronously.

Learners on one machine have a supervisor instead (supervisor.py). torchrun often blames a learner that only notices
that another one is gone, passes on no shared memory, and leaves learners behind when it is killed itself."""

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from accel_rl.config.learners import RankInfo
from accel_rl.distributed.learner_process import learn
from accel_rl.distributed.roll_call import LostError, RollCall
from accel_rl.distributed.run_request import RunRequest
from accel_rl.distributed.sync_coordinator import SyncCoordinator, connect, process_group
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.devices import device_id
from accel_rl.hardware.signals import StopSignal
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.run_folder.directory import Job, is_finished, launcher_id
from accel_rl.run_folder.lock import locked
from accel_rl.settings.resolve import Config
from accel_rl.training.build import check
from accel_rl.training.callbacks import Callbacks
from accel_rl.training.coordinator import Request
from accel_rl.training.learner import LearnerJob
from accel_rl.training.log import logged, logger, print_line
from accel_rl.training.tracking import tracked
from accel_rl.version import __version__

SIGNAL_SPREAD_S = 3.0  # launchers of several machines pass a signal on to their learners within this time
T = TypeVar("T")


class AgreedRun(NamedTuple):
    """The run that all learners have agreed on."""

    config: Config
    folder: Path
    state: dict[str, Any] | None
    check: Callable[[], None]
    """Raises RunError once the learners of another launcher have taken over the folder."""


def learn_launched(
    rank_info: RankInfo,
    request: RunRequest,
    stop: StopSignal,
    show: bool,
    callbacks: Callbacks,
    tracker: contextlib.ExitStack,
) -> Path:
    """Trains as this learner until the run ends; returns its folder. tracker: a stack that ends the tracker."""
    # Learners decide on GPUs only when they agree on a run. Without tensors on GPUs, NCCL is idle.
    group = process_group(rank_info.rank, rank_info.size, None, offers_nccl=torch.cuda.is_available())
    with contextlib.ExitStack() as lock, group:
        coordinator = SyncCoordinator(rank_info.rank, rank_info.size)
        run = agree_on_run(coordinator, request, lock)
        if run is None:
            return Path(request.resume or request.out or "")
        steps = run.state["steps"] if run.state else 0
        coordinator.begin(steps, run.config.learners.learner_timeout_s, run.check)
        tracker.enter_context(tracked(run.config, run.folder, show, callbacks))
        with logged(run.folder, show, run.config.run.report, rank_info.rank):
            _learn(run, coordinator, stop, show, callbacks)
    return run.folder


def _learn(run: AgreedRun, coordinator: SyncCoordinator, stop: StopSignal, show: bool, callbacks: Callbacks) -> None:
    this = f"learner {coordinator.rank} on {socket.gethostname()}"
    host = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0  # the learner that has the store
    name = coordinator.all_gather(uuid.uuid4().hex)[0]  # a restarted job may meet its earlier store again
    store, timeout_s = PrefixStore(name, connect(None, coordinator.size)), run.config.learners.learner_timeout_s

    def report(error: LostError) -> None:
        logger.error("%s %s", this, error)
        print_line(f"accel-rl: {this} {error}")

    try:
        with RollCall(store, coordinator.rank, coordinator.size, timeout_s, host, report):
            request = learn(LearnerJob(run.config, run.folder, coordinator, stop, run.state, show, on_row=callbacks))
    except LostError as error:
        raise RunError(f"{this} {error}") from None
    except (RunError, UsageError) as error:
        raise type(error)(f"{this}: {error}") from None
    if request is Request.STOP and callbacks.request is not Request.STOP:
        deadline = time.monotonic() + SIGNAL_SPREAD_S
        while not stop and time.monotonic() < deadline:  # if this learner gets the others' signal, it has not failed
            time.sleep(0.05)
        if not stop:
            raise RunError(f"{this} has stopped at step {coordinator.steps}, as another learner was asked to")


def agree_on_run(coordinator: SyncCoordinator, request: RunRequest, lock: contextlib.ExitStack) -> AgreedRun | None:
    """Agrees with all learners on one run, in a folder that all of them see; returns None if it is already finished.

    After a restart by torchrun, the run goes on from its last checkpoint. lock: a stack that unlocks the folder. Raises
    UsageError, in all learners, if they have different versions or settings."""
    if (name := request.resume or request.out) is None:
        raise UsageError("with torchrun, name the run's folder with --out DIR: a restarted run continues from there")
    folder = Path(name)
    job_name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    job = Job(job_name, uuid.uuid4().hex, tuple(coordinator.all_gather(launcher_id())))
    job = coordinator.all_gather(job)[0]

    def on_rank_0(condition: Callable[[], bool]) -> bool:
        return bool(coordinator.all_gather(_on_all(coordinator, lambda: coordinator.rank == 0 and condition()))[0])

    if is_own := on_rank_0(lambda: job.owns(folder)):
        if on_rank_0((folder / CHECKPOINT).exists):
            request = replace(request, out=None, config=None, resume=folder, overwrite=False)
            if on_rank_0(lambda: is_finished(folder, request.settings, request.trust)):
                return None
        else:  # the run was interrupted before its first checkpoint
            request = replace(request, overwrite=True)
    # Shared devices are known only when all have resolved, since each may call a different GPU cuda:0.
    config, state = _on_all(coordinator, partial(request.resolve, alone=True))
    sharing = _share_memory(coordinator, config.device)
    _on_all(coordinator, lambda: check(config, sharing) if len(sharing) > 1 else None)
    versions = {"accel_rl": __version__, "torch": torch.__version__}
    begins = {"the checkpoint's steps": state["steps"] if state else 0}
    begins |= {"the initial policy": config.initial and config.initial.checksum}
    _check_same(coordinator.all_gather((socket.gethostname(), versions | config.as_dict() | begins)))

    def take_over() -> None:
        if coordinator.rank == 0:
            # Cut-off learners of this job may still hold the lock; they will see that another job owns the folder.
            with contextlib.suppress(*[UsageError] if is_own else []):
                lock.enter_context(locked(folder, "run"))
            request.open_folder(config, state, folder)
            job.claim(folder)

    _on_all(coordinator, take_over)
    _on_all(coordinator, lambda: job.wait_until_visible(folder))
    return AgreedRun(config, folder, state, partial(job.check_owner, folder))


def _share_memory(coordinator: SyncCoordinator, device: str) -> list[str]:
    """Returns this learner's device, repeated for each learner that uses the same memory."""
    own = device_id(device).memory
    return [device for other in coordinator.all_gather(own) if other == own]


def _on_all(coordinator: SyncCoordinator, do: Callable[[], T]) -> T:
    """Calls do() and returns its result. If it fails in some learners, all raise the first one's error."""
    result, failure = None, None
    try:
        result = do()
    except (UsageError, RunError, OSError) as error:
        failure = (UsageError if isinstance(error, UsageError) else RunError, str(error))
    for rank, (host, failed) in enumerate(coordinator.all_gather((socket.gethostname(), failure))):
        if failed:
            kind, text = failed
            raise kind(f"learner {rank} on {host}: {text}" if rank else text)
    return result  # type: ignore[return-value]


def _check_same(learners: list[tuple[str, dict[str, Any]]]) -> None:
    """Raises UsageError if a learner's versions or settings differ from the first's. learners: hosts and values."""
    first_host, first = learners[0]
    for rank, (host, values) in enumerate(learners):
        for name in {**first, **values}:
            if values.get(name) != first.get(name):
                raise UsageError(
                    f"learner {rank} on {host} has {name}={values.get(name)}, but learner 0 on {first_host} has "
                    f"{first.get(name)}; start all learners with the same version and settings"
                )
