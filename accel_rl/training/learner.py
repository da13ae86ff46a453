"""A learner of a run: its parts, made from the resolved settings."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from accel_rl.algos.base import Algo
from accel_rl.samplers.base import Sampler
from accel_rl.training.build import build_algo_and_update, build_training_sampler
from accel_rl.training.coordinator import Coordinator
from accel_rl.training.finite_guard import FiniteGuard
from accel_rl.training.metrics import MetricsBuffer
from accel_rl.training.progress import Progress
from accel_rl.training.resolve import Config
from accel_rl.updates import CentralStore, Update


@dataclass
class Learner:
    """The parts of a learner that trainer, evaluator and checkpointer share.

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

    def close(self) -> None:
        if self.progress:
            self.progress.close()
        try:
            self.sampler.close()
        finally:
            self.update.exchange.close()


def build_learner(
    config: Config, folder: Path, coordinator: Coordinator, steps: int, show: bool, store: CentralStore | None = None
) -> Learner:
    """Makes a learner's parts; its sampler's processes run when this returns.

    config: this learner's view of the run. steps: of the run so far. show: progress on the console. store: the central
    parameters, if learners share them."""
    run = config.run
    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats bit for bit only with it
        torch.use_deterministic_algorithms(True)
    algo, update = build_algo_and_update(config, store, all_reduce=coordinator.is_synchronous)
    sampler = build_training_sampler(config, algo)
    try:
        progress = Progress(folder, steps, run.steps, run.tensorboard, show) if coordinator.rank == 0 else None
        metrics = MetricsBuffer()
        guard = FiniteGuard(folder, config.algo, metrics.statistics, algo.policy, update, config.trust)
    except BaseException:
        sampler.close()
        raise
    return Learner(config, folder, coordinator, algo, update, sampler, metrics, progress, guard, steps)
