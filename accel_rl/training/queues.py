"""The queued sampler of a run: its settings, and what it cannot do."""

import math
import resource

import numpy as np
import torch

from accel_rl.algos.base import Algo
from accel_rl.errors import UsageError
from accel_rl.hardware.host_memory import check_fits
from accel_rl.samplers.queued.sampler import QueueConfig
from accel_rl.samplers.queued.slots import MOST_AGENTS, QUEUE_LENGTH, shared_layout
from accel_rl.training.resolve import Config

ADJUSTED_AGENTS = 256  # the most by default, where their number is adjusted
FILES_PER_AGENT, SPARE_FILES = 3, 100  # two semaphores and a connection; what else a run has open
AGENT_BYTES = 8 << 20  # of an agent's process alone: Pong, measured


def queue_config(config: Config) -> QueueConfig:
    """Returns the settings of the queued sampler."""
    queues = config.queues
    return QueueConfig(
        num_predictors=queues.predictors,
        num_trainers=queues.trainers,
        prediction_batch=queues.prediction_batch,
        min_training_batch=config.min_training_batch,
        places=queues.training_queue,
        max_agents=max_agents(config),
        threads=config.plan.sampling_threads,
        deterministic=config.run.deterministic,
        adjustment_interval_s=queues.adjustment_interval_s if queues.dynamic_adjustment else None,
        adjustment_objective=queues.adjustment_objective,
    )


def max_agents(config: Config) -> int:
    """Returns how many agents there may ever be: as many as at the start, unless their number is adjusted."""
    run, queues = config.run, config.queues
    if not queues.dynamic_adjustment:
        return run.envs
    return max(
        run.envs, queues.max_agents or min(ADJUSTED_AGENTS, max(4 * run.envs, 16 * config.plan.topology.num_busy))
    )


def check_queues(config: Config, algo: Algo) -> None:
    """Raises UsageError for what the queued sampler cannot do."""
    run = config.run
    if not algo.accepts_segments:
        raise UsageError(
            f"sampler=queued hands over segments of steps, from which {run.algo} cannot learn; use an actor-critic, "
            "or --sampler alternating"
        )
    if config.rank_info.size > 1 or config.is_central:
        raise UsageError(
            "sampler=queued has one learner, whose network all agents share; use --sampler alternating with several "
            "learners or a central store"
        )
    if config.min_training_batch > run.steps:
        raise UsageError(
            f"min_training_batch={config.min_training_batch} is never reached in steps={run.steps}: nothing would be "
            "learned; make one of them smaller or larger"
        )
    if run.reset_mode == "wait":
        raise UsageError("reset_mode=wait waits for the end of a rollout, which agents do not have; use immediate")
    if run.workers is not None or run.envs_per_worker is not None:
        raise UsageError(
            "workers and envs_per_worker are of the alternating sampler; with sampler=queued, each environment of "
            "--envs has a process of its own: omit them"
        )
    _check_agents(config)


def _check_agents(config: Config) -> None:
    """Raises UsageError for more agents than queues, file descriptors or memory allow."""
    run, queues, agents = config.run, config.queues, max_agents(config)
    name = "envs" if agents == run.envs else "max_agents"
    flag = f"--{name.replace('_', '-')}"
    if agents > MOST_AGENTS:
        raise UsageError(f"{name}={agents} is more than a queued sampler can have: use {flag} {MOST_AGENTS} or less")
    places = QUEUE_LENGTH // agents - 1
    if queues.training_queue > places:
        raise UsageError(
            f"training_queue={queues.training_queue} is too much for {agents} agents, whose segments share a queue of "
            f"{QUEUE_LENGTH}: use --training-queue {places} or less"
        )
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if agents * FILES_PER_AGENT + SPARE_FILES > open_files:
        most = max(1, (open_files - SPARE_FILES) // FILES_PER_AGENT)
        raise UsageError(
            f"{name}={agents} agents have {agents * FILES_PER_AGENT} files open, but this process may have "
            f"{open_files}: use {flag} {most} or less, or raise the limit (ulimit -n)"
        )
    layout = shared_layout(config.spec, run.horizon, 1 + queues.training_queue, 1)
    slots = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())
    check_fits(run.envs * (slots + AGENT_BYTES), run.envs, "envs", torch.device("cpu"))
