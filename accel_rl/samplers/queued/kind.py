"""The queued sampler as a kind of sampler: its settings, its limits, and what it requires of the algorithm.

Importing this module imports neither torch nor NumPy.
"""

import math
import resource
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from accel_rl.config.fields import MAX_SECONDS, setting
from accel_rl.config.run_settings import RunSettings
from accel_rl.errors import UsageError, count
from accel_rl.hardware.placement import MAX_LEARNING_THREADS, Plan
from accel_rl.samplers.kinds import SamplerKind

if TYPE_CHECKING:
    from accel_rl.algos.auxiliary import AuxiliaryTasks
    from accel_rl.algos.base import Algo
    from accel_rl.samplers.queued.agent_replay import AgentReplayConfig
    from accel_rl.settings.resolve import Config

queue_setting = partial(setting, only_with="sampler queued")
adjustment_setting = partial(setting, only_with="dynamic_adjustment")
ADJUSTED_AGENTS = 256  # the default maximum if their number is adjusted
MAX_AGENTS_PER_CPU, MAX_QUEUE_THREADS = 16, 8  # limits of the tuner's search
FILES_PER_AGENT, SPARE_FILES = 3, 100  # an agent has two semaphores and a connection; a run has other files, too
AGENT_BYTES = 8 << 20  # memory of an agent's process alone, measured with Pong


@dataclass(frozen=True)
class QueueSettings:
    """Settings for --sampler queued only. Its agents are the environments of --envs."""

    predictors: int = queue_setting(
        2, "queued: threads that choose the agents' actions from waiting observations", least=1, most=999
    )
    trainers: int = queue_setting(
        2, "queued: threads that merge the agents' segments into batches to learn from", least=1, most=1024
    )
    prediction_batch: int = queue_setting(128, "queued: most observations that a predictor takes at once", least=1)
    min_training_batch: int | None = queue_setting(
        None,
        "queued: fewest steps in a batch to learn from (default: envs x horizon); a batch is also complete with twice "
        "as many segments as it would need if all were full",
        least=1,
    )
    training_queue: int = queue_setting(3, "queued: segments of each agent that may wait to be merged", least=1)
    dynamic_adjustment: bool = queue_setting(
        False, "queued: change the numbers of agents, predictors and trainers while running, and keep what is faster"
    )
    adjustment_interval_s: float = adjustment_setting(
        60.0, "queued: seconds between two adjustments", above=0, most=MAX_SECONDS
    )
    adjustment_objective: str = adjustment_setting(
        "trainings",
        "queued: what adjustment maximizes, per second: trainings (batches learned) or predictions (steps)",
        choices=("trainings", "predictions"),
    )
    max_agents: int | None = adjustment_setting(
        None,
        "queued: most agents that dynamic adjustment may start (default: 4 x envs, or 16 for each logical CPU if these "
        "are more, but at most 256)",
        least=1,
    )


class Queued(SamplerKind):
    """A sampler with agents in separate processes, and queues to predictors and trainers (docs/queues.md)."""

    sampler = "queued.sampler:QueuedSampler"
    Settings = QueueSettings
    title = "the queued sampler"
    left_to_the_machine = ("max_agents",)
    merges_rollouts = True

    def preset_changes(self, chosen: dict[str, Any]) -> dict[str, Any]:
        return {"normalize_returns": False} | ({"dynamic_adjustment": False} if chosen.get("deterministic") else {})

    def complete(self, settings: QueueSettings, run: RunSettings, plan: Plan) -> QueueSettings:
        """Returns the settings with the maximum number of agents, if that number is adjusted."""
        most = settings.max_agents
        if most is not None and most < run.envs:
            raise UsageError(f"max_agents={most} must be at least envs={run.envs}, the agents to start with")
        if most is None and settings.dynamic_adjustment:
            most = max(run.envs, min(ADJUSTED_AGENTS, max(4 * run.envs, 16 * plan.topology.num_busy)))
        return replace(settings, max_agents=most)

    def threads(self, run: RunSettings, num_cpus: int) -> tuple[int | None, int | None]:
        """Returns one for sampling, and half of the logical CPUs for learning: agents and predictors work meanwhile."""
        return run.sampling_threads or 1, run.learning_threads or min(max(1, num_cpus // 2), MAX_LEARNING_THREADS)

    def columns(self, config: "Config") -> tuple[int, int]:
        """Returns the number of full-length segments in a batch, twice, since there is one learner."""
        return (-(-min_training_batch(config) // config.run.horizon),) * 2

    def check(self, config: "Config", algo: "Algo", tasks: "AuxiliaryTasks | None") -> None:
        run = config.run
        if not algo.accepts_segments:
            raise UsageError(
                f"sampler=queued hands over segments of steps, from which {run.algo} cannot learn; use an "
                "actor-critic, or --sampler alternating"
            )
        if config.rank_info.size > 1 or config.is_central:
            raise UsageError(
                "sampler=queued has one learner, whose network all agents share; use --sampler alternating with "
                "several learners or a central store"
            )
        if min_training_batch(config) > run.steps:
            raise UsageError(
                f"min_training_batch={min_training_batch(config)} is never reached in steps={run.steps}: nothing "
                "would be learned; lower it, or raise steps"
            )
        if run.reset_mode == "wait":
            raise UsageError("reset_mode=wait waits for the end of a rollout, which agents do not have; use immediate")
        if run.workers is not None or run.envs_per_worker is not None:
            raise UsageError(
                "workers and envs_per_worker are for the alternating sampler; with sampler=queued, each environment of "
                "--envs has a process of its own: omit them"
            )
        if run.deterministic and settings_of(config).dynamic_adjustment:
            raise UsageError("dynamic_adjustment follows measured times, which deterministic runs ignore: omit one")
        _check_number_of_agents(config)
        _check_algorithm(algo)
        if tasks:
            _check_tasks(tasks)
        _check_memory(config, agent_replay_config(tasks, run.envs, run.seed))

    def own_arguments(self, config: "Config", tasks: "AuxiliaryTasks | None") -> dict[str, Any]:
        return {
            "queues": settings_of(config),
            "threads": config.plan.sampling_threads,
            "deterministic": config.run.deterministic,
            "replay": agent_replay_config(tasks, config.run.envs, config.run.seed),
        }

    def simulated_in(self, config: "Config") -> str:
        return count(config.run.envs, "agent")

    def show_simulators(self, config: "Config") -> str | None:
        queues, agents = settings_of(config), count(config.run.envs, "agent")
        text = f"agents      {agents}, {count(queues.predictors, 'predictor')}, {count(queues.trainers, 'trainer')}"
        if queues.dynamic_adjustment:
            text += f", adjusted every {queues.adjustment_interval_s:g} s (up to {queues.max_agents} agents)"
        return f"{text}; batches of at least {min_training_batch(config)} steps"

    def tunable(self, config: "Config", tune_envs: bool) -> dict[str, list[int]]:
        threads = list(range(1, MAX_QUEUE_THREADS + 1))
        agents = list(range(1, MAX_AGENTS_PER_CPU * config.plan.topology.num_busy + 1))
        return {"envs": agents, "predictors": threads, "trainers": threads}

    def fixed_for_tuning(self, config: "Config") -> dict[str, Any]:
        """Returns settings that keep the current size of a batch for any number of agents, and turn adjustment off."""
        return {"min_training_batch": min_training_batch(config), "dynamic_adjustment": False}

    def note_on_envs(self, config: "Config", is_tuned: bool) -> str:
        return "envs are the agents; the batch that is learned from stays as it is"

    def steps_held(self, config: "Config") -> int:
        queues, run = settings_of(config), config.run
        return queues.training_queue * run.envs * run.horizon + (queues.trainers + 1) * min_training_batch(config)


def settings_of(config: "Config") -> QueueSettings:
    """Returns the run's settings of this sampler."""
    settings: QueueSettings = config.sampler_settings[QueueSettings]
    return settings


def min_training_batch(config: "Config") -> int:
    """Returns the fewest steps that are merged into a batch."""
    return settings_of(config).min_training_batch or config.run.envs * config.run.horizon


def agent_replay_config(tasks: "AuxiliaryTasks | None", num_agents: int, seed: int) -> "AgentReplayConfig | None":
    """Returns what each agent keeps and draws for the run's auxiliary tasks; None without tasks. seed: the run's."""
    if not tasks:
        return None
    from accel_rl.replay.replay import saves
    from accel_rl.replay.sequences import sequence_bytes
    from accel_rl.samplers.queued.agent_replay import AgentReplayConfig

    settings = tasks.settings
    num_bytes = sequence_bytes(tasks.algo.spec, num_agents, settings.auxiliary_replay_steps)
    return AgentReplayConfig(
        size=settings.auxiliary_replay_steps,
        sequence_steps=tasks.sequence_steps,
        tasks=settings.task_names,
        pixel_control_cell=settings.pixel_control_cell,
        pixel_control_discount=settings.pixel_control_discount,
        discount=settings.discount,
        waits=settings.auxiliary_start != "at_once",
        in_checkpoints=saves(settings.checkpoint_replay, num_bytes),
        seed=seed,
    )


def _check_number_of_agents(config: "Config") -> None:
    """Raises UsageError if there are more agents than queues or file descriptors allow."""
    from accel_rl.samplers.queued.slots import QUEUE_LENGTH

    run, queues = config.run, settings_of(config)
    agents = queues.max_agents or run.envs
    name = "envs" if agents == run.envs else "max_agents"
    flag = f"--{name.replace('_', '-')}"
    most = QUEUE_LENGTH // (1 + queues.training_queue)  # the queue must have room for all slot numbers
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


def _check_algorithm(algo: "Algo") -> None:
    """Raises UsageError for settings of the algorithm that do not work with segments."""
    settings = algo.settings
    if getattr(settings, "normalize_returns", False):
        raise UsageError(
            "normalize_returns=True needs all steps of each environment in order, but sampler=queued learns from "
            "segments as they arrive; use --no-normalize-returns, or --sampler alternating"
        )
    # A batch can have any number of samples, but needs at least as many as minibatches.
    segments, minibatches = algo.local_envs, getattr(settings, "minibatches", 1)
    num_items, what = (segments, "segments") if algo.policy.state_size else (segments * algo.horizon, "samples")
    if num_items < minibatches:
        raise UsageError(
            f"batches of about {num_items} {what} do not divide into minibatches={minibatches}; lower it, or raise "
            "min_training_batch"
        )


def _check_tasks(tasks: "AuxiliaryTasks") -> None:
    """Raises UsageError for settings of the auxiliary tasks that agents cannot follow."""
    if tasks.is_recurrent:
        raise UsageError(
            "with sampler=queued, agents draw for the auxiliary tasks, which supports no recurrent cores: use "
            "--core none, or --sampler alternating"
        )
    if tasks.settings.auxiliary_start == "all_when_full":
        raise UsageError(
            "auxiliary_start=all_when_full waits for the learner's replay, but with sampler=queued each agent "
            "has a replay of its own: use when_full, or --sampler alternating"
        )


def _check_memory(config: "Config", replay: "AgentReplayConfig | None") -> None:
    """Raises UsageError if agents (with their slots and replays) or batches do not fit into memory."""
    import torch

    from accel_rl.hardware.host_memory import check_fits
    from accel_rl.hardware.shared_memory import layout_bytes
    from accel_rl.replay.sequences import sequence_bytes
    from accel_rl.samplers.queued.agent_replay import auxiliary_layout
    from accel_rl.samplers.queued.batches import num_columns
    from accel_rl.samplers.queued.slots import shared_layout

    run, spec, queues, host = config.run, config.spec, settings_of(config), torch.device("cpu")
    if replay:
        num_bytes, way_out = sequence_bytes(spec, run.envs, replay.size), "fewer agents (--envs), or "
        check_fits(num_bytes, replay.size, "auxiliary_replay_steps", host, way_out)
    layout = shared_layout(spec, run.horizon, 1, 1, auxiliary_layout(spec, replay) if replay else None)
    segment = layout_bytes(layout)
    row = math.prod(spec.row_shape) * spec.row_dtype.itemsize
    agent = (1 + queues.training_queue) * segment + AGENT_BYTES + (replay.size * row if replay else 0)
    check_fits(run.envs * agent, run.envs, "envs", host)
    least = min_training_batch(config)
    check_fits((queues.trainers + 1) * num_columns(least, run.horizon) * segment, least, "min_training_batch", host)
