"""One learner of a run: its work, and its own process if there are several learners."""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from accel_rl.distributed.async_coordinator import AsyncCoordinator, Control
from accel_rl.distributed.roll_call import LostError, naming_absent, peer_failure_message
from accel_rl.distributed.sync_coordinator import SyncCoordinator, connect, process_group
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.limits import advice_on_limits, check_threads
from accel_rl.hardware.placement import pinned
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.settings.resolve import Config
from accel_rl.training.callbacks import Row
from accel_rl.training.coordinator import Coordinator, Request, SingleLearner
from accel_rl.training.learner import LearnerJob
from accel_rl.training.log import open_log
from accel_rl.training.loop import TrainingLoop
from accel_rl.training.out_of_memory import advice_on_memory
from accel_rl.updates.parameter_store import CentralStore, StoreSetup


def learn(job: LearnerJob) -> Request:
    """Trains as this learner, to the end of the run; returns what `TrainingLoop.run` does.

    Raises RunError with advice if a GPU is out of memory, or at a limit of this process."""
    config, plan = job.config, job.config.plan
    with advice_on_limits(), advice_on_memory(config), pinned(plan.server_cpus):
        if config.device.startswith("cuda"):
            torch.cuda.set_device(config.device)
            torch.set_num_threads(plan.sampling_threads)  # torch's default is one on each logical CPU, workers' too
        loop = TrainingLoop(job)
        try:
            check_threads(max(plan.sampling_threads, plan.learning_threads) - 1)
            job.stop.ready()
            return loop.run()
        finally:
            loop.close()


# ---- a process of its own ----


@dataclass
class LearnerSetup:
    """The supervisor's message to a learner's process.

    control_fd: descriptor of the memory of `Control`. has_callbacks: the supervisor needs the rows of the log. port:
    that of the store where synchronous learners meet. store, to_rank_0, from_learners: for asynchronous learners;
    connections by their descriptors."""

    config: Config
    folder: Path
    control_fd: int
    is_resumed: bool
    show: bool
    has_callbacks: bool = False
    port: int | None = None
    store: StoreSetup | None = None
    to_rank_0: int | None = None
    from_learners: dict[int, int] = field(default_factory=dict)

    def fds(self) -> list[int]:
        """The descriptors that the process must inherit, besides its connection to the supervisor."""
        connections = [*self.from_learners.values(), *([] if self.to_rank_0 is None else [self.to_rank_0])]
        return [self.control_fd, *connections, *([self.store.fd] if self.store else [])]


@dataclass
class SupervisedStop:
    """The supervisor's request to stop, in the form that `TrainingLoop` reads: true once there is one."""

    supervisor: "Connection[Any, Any]"
    control: Control

    def __bool__(self) -> bool:
        return self.control.request is Request.STOP

    def ready(self) -> None:
        """Announces that this learner can stop in good order, and waits until all learners can."""
        self.supervisor.send(("ready", ""))
        self.control.wait_for_start()


@dataclass
class SupervisedCallbacks:
    """A learner's `RowListener`: passes rows to the callbacks in the supervisor's process, and their requests back."""

    supervisor: "Connection[Any, Any]"
    control: Control
    are_there: bool

    @property
    def request(self) -> Request:
        return self.control.request

    def __call__(self, row: Row) -> None:
        if self.are_there:
            self.supervisor.send(("row", row))
            self.supervisor.recv()


def main(fd: int) -> None:
    """Runs a learner in a process forked for it: trains to the end of the run.

    fd: the descriptor of its connection to the supervisor."""
    run_learner(fd, _train)


def run_learner(fd: int, work: Callable[[LearnerSetup, SupervisedStop], None]) -> None:
    """Receives a LearnerSetup through the connection fd, calls work, and reports how that ended."""
    supervisor: Connection[Any, Any] = Connection(fd)
    setup: LearnerSetup = supervisor.recv()
    answer: tuple[str, Any] = ("done", "")
    with open_log(setup.folder, setup.show, setup.config.rank_info.rank):
        try:
            with advice_on_limits():
                work(setup, SupervisedStop(supervisor, Control(setup.config.rank_info.size, setup.control_fd)))
        except LostError as error:
            answer = ("lost", error)
        except (RunError, UsageError) as error:
            answer = ("usage" if isinstance(error, UsageError) else "failed", str(error))
        except Exception as error:
            lost = peer_failure_message(error)  # a failure before the first roll call
            answer = ("lost", LostError([], lost)) if lost else ("failed", traceback.format_exc().rstrip())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor is gone, and so is its log
        supervisor.send(answer)


def _train(setup: LearnerSetup, stop: SupervisedStop) -> None:
    state = checkpoint.load(setup.folder / CHECKPOINT, trust=setup.config.trust) if setup.is_resumed else None
    with connected(setup, stop, state["steps"] if state else 0) as (coordinator, store):
        callbacks = SupervisedCallbacks(stop.supervisor, stop.control, setup.has_callbacks)
        learn(LearnerJob(setup.config, setup.folder, coordinator, stop, state, setup.show, store, callbacks))


@contextlib.contextmanager
def connected(
    setup: LearnerSetup, stop: SupervisedStop, steps: int = 0
) -> Iterator[tuple[Coordinator, CentralStore | None]]:
    """Yields this learner's coordinator, and the store of the parameters if learners share one.

    steps: those that a resumed run has done already."""
    config, rank_info = setup.config, setup.config.rank_info
    if setup.store:
        from_learners = {rank: Connection(fd, writable=False) for rank, fd in setup.from_learners.items()}
        to_rank_0 = None if setup.to_rank_0 is None else Connection(setup.to_rank_0, readable=False)
        yield (
            AsyncCoordinator(rank_info.rank, rank_info.size, stop.control, to_rank_0, from_learners),
            CentralStore.attach(setup.store),
        )
    elif rank_info.size == 1:
        yield SingleLearner(steps), None
    else:
        # NCCL refuses learners that share a GPU.
        has_own_gpu = config.device != "cpu" and len(set(config.devices)) == len(config.devices)
        rank, size, timeout_s = rank_info.rank, rank_info.size, config.learners.learner_timeout_s

        def report(error: LostError) -> None:
            stop.supervisor.send(("lost", error))

        with process_group(rank, size, setup.port, offers_nccl=has_own_gpu):
            coordinator = SyncCoordinator(rank, size)
            coordinator.begin(steps, timeout_s)
            with naming_absent(connect(setup.port, size), rank, size, timeout_s, None, report):
                yield coordinator, None
