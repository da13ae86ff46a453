"""One learner of a run: what the only one does, and its own process where there are several."""

import contextlib
import faulthandler
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from accel_rl.distributed.async_coordinator import AsyncCoordinator, Control
from accel_rl.distributed.sync_coordinator import SyncCoordinator, peer_failure_message, process_group
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.placement import pinned
from accel_rl.hardware.signals import leave_signals_to_parent
from accel_rl.training import checkpoint
from accel_rl.training.checkpoint import CHECKPOINT
from accel_rl.training.coordinator import Coordinator, SingleLearner
from accel_rl.training.log import close_log, open_log
from accel_rl.training.resolve import Config
from accel_rl.training.trainer import Trainer
from accel_rl.updates.parameter_store import CentralStore, StoreSetup


def learn(
    config: Config,
    folder: Path,
    coordinator: Coordinator,
    stop: Any,
    state: dict[str, Any] | None,
    show: bool,
    store: CentralStore | None = None,
) -> None:
    """Trains as this learner of the run, to its end. Raises RunError with advice if a GPU is out of memory."""
    if config.device.startswith("cuda"):
        torch.cuda.set_device(config.device)
    try:
        with pinned(config.plan.server_cpus):
            trainer = Trainer(config, folder, coordinator, stop, state, show, store)
            try:
                stop.ready()
                trainer.run()
            finally:
                trainer.close()
    except torch.OutOfMemoryError as error:
        raise RunError(out_of_memory(error, config)) from None


def out_of_memory(error: BaseException, config: Config) -> str:
    """What was asked of the GPU, what it has, and which settings to lower."""
    asked = re.search(r"Tried to allocate ([0-9.]+ [KMGT]?i?B)", str(error))
    wishes = f"--envs ({config.run.envs}) or --horizon ({config.run.horizon})"
    if (size := getattr(config.algo, "replay_size", None)) is not None:
        wishes = f"--replay-size ({size}) or --batch-size ({config.algo.batch_size}), or use --replay-device cpu"
    free = ""
    if torch.cuda.is_available():
        left, total = torch.cuda.mem_get_info(config.device)
        free = f"; {left / 2**30:.1f} of its {total / 2**30:.1f} GiB are free"
    return (
        f"{config.device} is out of memory ({asked[1] if asked else 'an unknown amount'} was asked for{free}): "
        f"lower {wishes}"
    )


# ---- a process of its own ----


@dataclass
class LearnerSetup:
    """What a learner's process is told. control_fd: of the memory of `Control`. port: of the store where learners
    in step meet. store, to_first, from_others: of learners that share parameters; connections by their descriptors."""

    config: Config
    folder: Path
    control_fd: int
    is_resumed: bool
    show: bool
    port: int | None = None
    store: StoreSetup | None = None
    to_first: int | None = None
    from_others: dict[int, int] = field(default_factory=dict)

    def fds(self) -> list[int]:
        """The descriptors that the process has to inherit."""
        own = [*self.from_others.values(), *([] if self.to_first is None else [self.to_first])]
        return [self.control_fd, *own, *([self.store.fd] if self.store else [])]


def main(work: "Callable[[LearnerSetup, Ready], None] | None" = None) -> None:
    """work: other than to train to the end of the run."""
    leave_signals_to_parent()
    if os.getppid() != int(sys.argv[2]):  # it has ended before this process could ask to end with it
        return
    faulthandler.enable()
    parent: Connection[Any, Any] = Connection(int(sys.argv[1]))
    setup: LearnerSetup = pickle.loads(parent.recv_bytes())
    handlers = open_log(setup.folder, setup.show, setup.config.rank_info.rank)
    try:
        (work or _work)(setup, Ready(parent, Control(setup.config.rank_info.size, setup.control_fd)))
        parent.send(("done", ""))
    except (RunError, UsageError) as error:
        parent.send(("usage" if isinstance(error, UsageError) else "failed", str(error)))
    except Exception as error:
        kind = "failed" if peer_failure_message(error) is None else "lost"
        parent.send((kind, traceback.format_exc().rstrip()))
    finally:
        close_log(handlers)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch takes seconds to take itself down


@dataclass
class Ready:
    """The wish to stop, for a Trainer. Once this learner is ready to stop in good order, it waits for the others."""

    parent: "Connection[Any, Any]"
    control: Control

    def __bool__(self) -> bool:
        return self.control.stop_requested

    def ready(self) -> None:
        self.parent.send(("ready", ""))
        self.control.wait_for_start()


def _work(setup: LearnerSetup, stop: Ready) -> None:
    state = checkpoint.load(setup.folder / CHECKPOINT) if setup.is_resumed else None
    with joined(setup, stop.control, state["steps"] if state else 0) as (coordinator, store):
        learn(setup.config, setup.folder, coordinator, stop, state, setup.show, store)


@contextlib.contextmanager
def joined(setup: LearnerSetup, control: Control, steps: int = 0) -> Iterator[tuple[Coordinator, CentralStore | None]]:
    """This learner's coordinator, and the parameters that it shares. steps: that a resumed run has behind it."""
    config, rank_info = setup.config, setup.config.rank_info
    if setup.store:
        others = {rank: Connection(fd, writable=False) for rank, fd in setup.from_others.items()}
        to_first = None if setup.to_first is None else Connection(setup.to_first, readable=False)
        yield (
            AsyncCoordinator(rank_info.rank, rank_info.size, control, to_first, others),
            CentralStore.attach(setup.store),
        )
    elif rank_info.size == 1:
        yield SingleLearner(steps), None
    else:
        # NCCL refuses learners that share a GPU.
        by_nccl = config.device != "cpu" and len(set(config.devices)) == len(config.devices)
        with process_group(rank_info.rank, rank_info.size, setup.port, by_nccl):
            coordinator = SyncCoordinator(rank_info.rank, rank_info.size)
            coordinator.begin(steps, config.learners.learner_timeout_s)
            yield coordinator, None


if __name__ == "__main__":
    main()
