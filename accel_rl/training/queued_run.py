"""The queued sampler of a run: its settings, and what it cannot do."""

import math
import resource
from typing import Any

import numpy as np
import torch

from accel_rl.algos.actor_critic import ActorCriticAlgo
from accel_rl.algos.base import Algo
from accel_rl.errors import UsageError
from accel_rl.hardware.host_memory import check_fits
from accel_rl.samplers.queued.agent_replay import auxiliary_layout
from accel_rl.samplers.queued.batches import num_columns
from accel_rl.samplers.queued.sampler import QueueConfig
from accel_rl.samplers.queued.slots import QUEUE_LENGTH, shared_layout
from accel_rl.training.resolve import Config

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
    return config.queues.max_agents or config.run.envs


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
    if run.deterministic and config.queues.dynamic_adjustment:
        raise UsageError("dynamic_adjustment goes by the time that things take, deterministic runs must not: omit one")
    _check_agents(config)
    _check_memory(config, algo)


def _check_agents(config: Config) -> None:
    """Raises UsageError for more agents than queues, file descriptors or memory allow."""
    run, queues, agents = config.run, config.queues, max_agents(config)
    name = "envs" if agents == run.envs else "max_agents"
    flag = f"--{name.replace('_', '-')}"
    most = QUEUE_LENGTH // (1 + queues.training_queue)  # numbers of slots must fit into the queue
    if agents > most:
        raise UsageError(
            f"{name}={agents} agents with training_queue={queues.training_queue} have more segments than a queue "
            f"holds: use {flag} {most} or less, or --training-queue {max(1, QUEUE_LENGTH // agents - 1)}"
        )
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if agents * FILES_PER_AGENT + SPARE_FILES > open_files:
        most = max(1, (open_files - SPARE_FILES) // FILES_PER_AGENT)
        raise UsageError(
            f"{name}={agents} agents have {agents * FILES_PER_AGENT} files open, but this process may have "
            f"{open_files}: use {flag} {most} or less, or raise the limit (ulimit -n)"
        )


def _check_memory(config: Config, algo: Any) -> None:
    """Raises UsageError for agents, with their slots and replays, or batches that do not fit into memory."""
    run, spec, host = config.run, config.spec, torch.device("cpu")
    replay = algo.agent_replay_config(run.envs) if isinstance(algo, ActorCriticAlgo) else None
    layout = shared_layout(spec, run.horizon, 1, 1, auxiliary_layout(spec, replay) if replay else None)
    segment = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())
    row = math.prod(spec.row_shape) * spec.row_dtype.itemsize
    agent = (1 + config.queues.training_queue) * segment + AGENT_BYTES + (replay.size * row if replay else 0)
    check_fits(run.envs * agent, run.envs, "envs", host)
    least = config.min_training_batch
    columns = (config.queues.trainers + 1) * num_columns(least, run.horizon)
    check_fits(columns * segment, least, "min_training_batch", host)
