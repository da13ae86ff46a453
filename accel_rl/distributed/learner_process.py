"""Runs one learner, in a separate process if the run has several."""

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from accel_rl.distributed.async_coordinator import AsyncCoordinator, Control
from accel_rl.distributed.roll_call import LostError, RollCall, peer_failure_message
from accel_rl.distributed.sync_coordinator import SyncCoordinator, connect, process_group
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.limits import advice_on_limits, check_threads
from accel_rl.hardware.placement import pinned
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.settings.resolve import Config
from accel_rl.training.callbacks import Row
from accel_rl.training.coordinator import Coordinator, Request
from accel_rl.training.learner import LearnerJob
from accel_rl.training.log import open_log
from accel_rl.training.loop import TrainingLoop
from accel_rl.training.out_of_memory import advice_on_memory
from accel_rl.updates.parameter_store import CentralStore, StoreSetup


def learn(job: LearnerJob) -> Request:
    """Trains as this learner until the run ends; returns the result of `TrainingLoop.run`.

    Raises RunError with advice if a GPU is out of memory or this process reaches a limit."""
    config, plan = job.config, job.config.plan
    with advice_on_limits(), advice_on_memory(config), pinned(plan.server_cpus):
        if config.device.startswith("cuda"):
            torch.cuda.set_device(config.device)
            torch.set_num_threads(plan.sampling_threads)  # torch's default is one per logical CPU, workers' too
        loop = TrainingLoop(job)
        try:
            check_threads(max(plan.sampling_threads, plan.learning_threads) - 1)
            job.stop.ready()
            return loop.run()
        finally:
            loop.close()


# ---- the process of one of several learners ----


@dataclass
class LearnerSetup:
    """The supervisor's message to a learner's process.

    control_fd: descriptor of the memory of `Control`. has_callbacks: the supervisor wants the rows of the log. port:
    where synchronous learners reach their common store. The rest is for asynchronous learners: their parameter store,
    and the descriptors of their connections."""

    config: Config
    folder: Path
    control_fd: int
    is_resumed: bool
    show: bool
    has_callbacks: bool
    port: int | None = None
    store: StoreSetup | None = None
    to_rank_0: int | None = None
    from_learners: dict[int, int] = field(default_factory=dict)

    def fds(self) -> list[int]:
        """Returns the descriptors that the process must inherit, except its connection to the supervisor."""
        own = [self.control_fd, self.to_rank_0, self.store.fd if self.store else None]
        return [fd for fd in own if fd is not None] + [*self.from_learners.values()]


@dataclass
class Supervisor:
    """The supervisor's proxy in a learner's process: a request to stop (true once there is one) and a `RowListener`."""

    connection: "Connection[Any, Any]"
    control: Control
    has_callbacks: bool

    def __bool__(self) -> bool:
        return self.request is Request.STOP

    @property
    def request(self) -> Request:
        return self.control.request

    def ready(self) -> None:
        """Announces that this learner can stop cleanly, and waits until all learners can."""
        self.connection.send(("ready", ""))
        self.control.wait_for_start()

    def __call__(self, row: Row) -> None:
        if self.has_callbacks:
            self.connection.send(("row", row))
            self.connection.recv()


def main(fd: int) -> None:
    """Trains a learner in the process forked for it until the run ends, and reports the outcome.

    fd: the descriptor of the connection to the supervisor."""
    connection: Connection[Any, Any] = Connection(fd)
    setup: LearnerSetup = connection.recv()
    answer: tuple[str, Any] = ("done", "")
    with open_log(setup.folder, setup.show, setup.config.rank_info.rank):
        try:
            with advice_on_limits():
                control = Control(setup.config.rank_info.size, setup.control_fd)
                _train(setup, Supervisor(connection, control, setup.has_callbacks))
        except LostError as error:
            answer = ("lost", error)
        except (RunError, UsageError) as error:
            answer = ("usage" if isinstance(error, UsageError) else "failed", str(error))
        except Exception as error:
            lost = peer_failure_message(error)  # a failure before the first roll call
            answer = ("lost", LostError([], lost)) if lost else ("failed", traceback.format_exc().rstrip())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor is gone, and so is its log
        connection.send(answer)


def _train(setup: LearnerSetup, supervisor: Supervisor) -> None:
    state = checkpoint.load(setup.folder / CHECKPOINT, trust=setup.config.trust) if setup.is_resumed else None
    with _connected(setup, supervisor, state["steps"] if state else 0) as (coordinator, store):
        learn(LearnerJob(setup.config, setup.folder, coordinator, supervisor, state, setup.show, store, supervisor))


@contextlib.contextmanager
def _connected(
    setup: LearnerSetup, supervisor: Supervisor, steps: int
) -> Iterator[tuple[Coordinator, CentralStore | None]]:
    """Yields this learner's coordinator, and the parameter store if learners share one.

    steps: agent steps that a resumed run has already done."""
    config, rank, size = setup.config, setup.config.rank_info.rank, setup.config.rank_info.size
    if setup.store:
        from_learners = {other: Connection(fd, writable=False) for other, fd in setup.from_learners.items()}
        to_rank_0 = None if setup.to_rank_0 is None else Connection(setup.to_rank_0, readable=False)
        coordinator = AsyncCoordinator(rank, size, supervisor.control, to_rank_0, from_learners)
        yield coordinator, CentralStore.attach(setup.store)
        return
    has_own_gpu = config.device != "cpu" and len(set(config.devices)) == size  # NCCL refuses to share a GPU
    timeout_s = config.learners.learner_timeout_s

    def report(error: LostError) -> None:
        supervisor.connection.send(("lost", error))

    with process_group(rank, size, setup.port, offers_nccl=has_own_gpu):
        in_step = SyncCoordinator(rank, size)
        in_step.begin(steps, timeout_s)
        with RollCall(connect(setup.port, size), rank, size, timeout_s, None, report):
            yield in_step, None
