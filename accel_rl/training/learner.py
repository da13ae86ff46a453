"""A learner of a run: its parts, made from the resolved settings."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel_rl.algos.base import Algo
from accel_rl.samplers.base import Sampler
from accel_rl.settings.resolve import Config
from accel_rl.training.build import build_algo_and_update, build_training_sampler
from accel_rl.training.callbacks import Callbacks, RowListener
from accel_rl.training.coordinator import Coordinator
from accel_rl.training.finite_guard import FiniteGuard
from accel_rl.training.metrics import MetricsBuffer
from accel_rl.training.progress import Progress
from accel_rl.updates import Update
from accel_rl.updates.parameter_store import CentralStore


@dataclass(frozen=True)
class LearnerJob:
    """The job of one learner of a run.

    config: as this learner sees it. stop: true once a signal has asked the run to stop. state: the checkpoint to
    continue from. show: shows progress on the console. store: the parameters that learners share, if any. on_row:
    receives each row of the log."""

    config: Config
    folder: Path
    coordinator: Coordinator
    stop: Any
    state: dict[str, Any] | None
    show: bool
    store: CentralStore | None = None
    on_row: RowListener = field(default_factory=Callbacks)


@dataclass
class Learner:
    """The parts of a learner that the training loop, the evaluator and the checkpointer share.

    progress: the log, on rank 0 only. steps: agent steps of the whole run so far.
    evaluation_is_due: stays true if a signal interrupts the evaluation, until it has been repeated."""

    config: Config
    folder: Path
    coordinator: Coordinator
    algo: Algo
    update: Update
    sampler: Sampler
    metrics: MetricsBuffer
    progress: Progress | None
    guard: FiniteGuard
    steps: int = 0
    evaluation_is_due: bool = False
    best_score: float | None = None

    @property
    def replay(self) -> Any:
        """The replay that checkpoints include, of the algorithm or of its auxiliary tasks; None if there is none."""
        return (self.update.tasks or self.algo).replay

    def close(self) -> None:
        with contextlib.ExitStack() as parts:  # closes each of them, even if another one fails
            parts.callback(self.update.close)
            parts.callback(self.sampler.close)
            if self.progress:
                parts.callback(self.progress.close)


def build_learner(job: LearnerJob) -> Learner:
    """Makes a learner's parts; its sampler's processes run when this returns."""
    config, run, steps = job.config, job.config.run, job.state["steps"] if job.state else 0
    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to be deterministic
        torch.use_deterministic_algorithms(True)
    algo, update = build_algo_and_update(config, job.store, all_reduce=job.coordinator.is_synchronous)
    sampler = build_training_sampler(config, algo)
    try:
        is_first = job.coordinator.rank == 0
        progress = Progress(job.folder, steps, run.steps, run.tensorboard, job.show) if is_first else None
        metrics = MetricsBuffer()
        guard = FiniteGuard(job.folder, config, metrics.statistics, algo.policy, update)
    except BaseException:
        sampler.close()
        raise
    return Learner(config, job.folder, job.coordinator, algo, update, sampler, metrics, progress, guard, steps)
