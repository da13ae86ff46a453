"""The kinds of sampler that a run can have: how each is planned, checked, built, described and tuned.

Everything else in this package, and the tuner, asks `SAMPLER_KINDS[run.sampler]`. Importing this imports no torch.
"""

import math
import resource
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from accel_rl.config.run_settings import RunSettings
from accel_rl.errors import UsageError
from accel_rl.hardware.placement import MAX_LEARNING_THREADS, divides_evenly
from accel_rl.hardware.topology import count

if TYPE_CHECKING:
    from accel_rl.algos.base import Algo
    from accel_rl.samplers.base import Sampler, SamplerConfig
    from accel_rl.samplers.queued.sampler import QueueConfig
    from accel_rl.settings.resolve import Config

MOST_WORKERS_PER_CPU, MOST_AGENTS_PER_CPU, MOST_QUEUE_THREADS = 2, 16, 8  # limits of the tuner's search
ENVS_FACTORS = (0.5, 1, 2, 4)  # the tuner tries these multiples of the algorithm's own number
FILES_PER_AGENT, SPARE_FILES = 3, 100  # per agent: two semaphores and a connection; SPARE: a run's other files
AGENT_BYTES = 8 << 20  # memory of an agent's process alone, measured with Pong


class SamplerKind(ABC):
    """A kind of sampler. The methods defined here suit one that steps environments in the learner's process."""

    merges_segments = False
    """Whether rollouts are merged from segments of steps, as they come (`Algo.learns_from_segments`)."""
    preset_changes: dict[str, Any] = {}
    """Settings in which presets give way to what this kind can do."""

    # ---- how it is planned ----

    def requested_workers(self, run: RunSettings) -> int | None:
        """Returns how many simulator processes the settings ask for; None: as many as fit the machine."""
        return 0

    def threads(self, run: RunSettings, num_cpus: int) -> tuple[int | None, int | None]:
        """Returns torch's threads for sampling and for learning; None: to be chosen. num_cpus: for the network."""
        return run.sampling_threads, run.learning_threads

    # ---- how it is checked and built ----

    def columns(self, config: "Config") -> tuple[int, int]:
        """Returns the columns of a rollout of all learners that update together, and of this learner's."""
        return config.local_envs if config.is_central else config.run.envs, config.local_envs

    def check(self, config: "Config", algo: "Algo") -> None:
        """Raises UsageError for settings that this kind does not support."""

    @abstractmethod
    def build(self, config: "Config", policy: Any, settings: "SamplerConfig", replay: Any) -> "Sampler":
        """Makes the sampler. replay: its agents' replay for auxiliary tasks, if it has agents."""

    # ---- how it is described ----

    def simulated_in(self, config: "Config") -> str:
        """Returns a text on where environments are stepped, such as "100 environments in 4 workers"."""
        return "this process"

    def show_simulators(self, config: "Config") -> str | None:
        """Returns a line on its processes; None if the plan itself has one."""
        return None

    # ---- how it is tuned ----

    def tunable(self, config: "Config", tune_envs: bool) -> dict[str, list[int]]:
        """Returns the values to try of settings that change a run's speed but not what it learns, by name. tune_envs:
        also of the number of environments, which does change it."""
        envs, threads = config.run.envs, list(range(1, config.plan.topology.num_busy + 1))
        found = {"envs": [int(envs * factor) for factor in ENVS_FACTORS if envs * factor >= 2]} if tune_envs else {}
        if config.device == "cpu":  # with a GPU there is almost nothing for threads to do
            found |= {"learning_threads": threads, "sampling_threads": threads}
        return found

    def fixed_for_tuning(self, config: "Config") -> dict[str, Any]:
        """Returns settings that make tuned runs comparable, and stay in the final run."""
        return {}

    def note_on_envs(self, config: "Config", is_tuned: bool) -> str:
        """Returns the tuner's note on the number of environments."""
        if not is_tuned:
            envs = config.run.envs
            return f"envs       {envs} in every point, since another number changes what is learned (--tune-envs)"
        changes = "envs also changes the batch, and so what is learned"
        return f"{changes}: compare scores, too, before you use another number"

    def steps_held(self, config: "Config") -> int:
        """Returns the most steps that it holds before anybody learns from them."""
        return 0


class Serial(SamplerKind):
    """A sampler whose environments are all stepped by the learner's process."""

    def build(self, config: "Config", policy: Any, settings: "SamplerConfig", replay: Any) -> "Sampler":
        from accel_rl.samplers.serial import SerialSampler

        return SerialSampler(config.spec, config.batch, policy, settings, config.device)


class Alternating(SamplerKind):
    """A sampler with workers: they step environments of two groups, which the network serves in turns."""

    def requested_workers(self, run: RunSettings) -> int | None:
        if run.envs_per_worker is None:
            return run.workers
        workers, rest = divmod(run.envs, run.envs_per_worker)
        if rest:
            raise UsageError(f"envs={run.envs} is not a multiple of envs_per_worker={run.envs_per_worker}; change one")
        if run.workers not in (None, workers):
            raise UsageError(
                f"workers={run.workers} and envs_per_worker={run.envs_per_worker} contradict each other for "
                f"envs={run.envs}; set one of them, or workers={workers}"
            )
        return workers

    def build(self, config: "Config", policy: Any, settings: "SamplerConfig", replay: Any) -> "Sampler":
        from accel_rl.samplers.alternating import AlternatingSampler

        return AlternatingSampler(config.spec, config.batch, policy, settings, config.device)

    def simulated_in(self, config: "Config") -> str:
        return count(config.workers * config.rank_info.size, "worker")

    def tunable(self, config: "Config", tune_envs: bool) -> dict[str, list[int]]:
        found = super().tunable(config, tune_envs)
        most, largest = MOST_WORKERS_PER_CPU * config.plan.topology.num_busy, max(found.get("envs", [config.run.envs]))
        # Only numbers that divide the environments: a worker serves both groups or one of them.
        workers = {"workers": [n for n in range(1, most + 1) if divides_evenly(largest, n)]}
        envs = {"envs": found.pop("envs")} if tune_envs else {}
        return {**envs, **workers, **found}


class Device(SamplerKind):
    """A sampler of environments that come as one batch: the learner's process steps it, on the policy's device."""

    preset_changes = {"sampling_threads": None}  # no simulators wait for the CPUs: 1,024 CartPoles gain 30 % on two

    def check(self, config: "Config", algo: "Algo") -> None:
        run, spec = config.run, config.spec
        structured = spec.action_space if isinstance(spec.action_space, spaces.Dict | spaces.Tuple) else None
        for what, space in (("observations", spec.nested_space), ("actions", structured)):
            if space is not None:
                raise UsageError(
                    f"{run.env}: {what} of type {type(space).__name__} are not supported on a device; use one array"
                )
        refused = {
            "wrappers": (",".join(run.wrappers), "are put around single environments"),
            "reset_mode": (run.reset_mode if run.reset_mode != "immediate" else "", "is not the environments' own"),
            "on_env_error": (run.on_env_error if run.on_env_error != "fail" else "", "replaces single environments"),
            "workers": (run.workers or run.envs_per_worker, "are simulator processes, which there are none of"),
        }
        for name, (value, why) in refused.items():
            if value:
                raise UsageError(f"sampler=device steps one batch of environments, but {name}={value} {why}: omit it")

    def build(self, config: "Config", policy: Any, settings: "SamplerConfig", replay: Any) -> "Sampler":
        from accel_rl.samplers.device import DeviceSampler

        return DeviceSampler(config.spec, config.batch, policy, settings, config.device)

    def simulated_in(self, config: "Config") -> str:
        return "one batch on the network's device"


class Queued(SamplerKind):
    """Agents in processes of their own, with queues to predictors and to trainers (docs/queues.md)."""

    merges_segments = True
    preset_changes = {"normalize_returns": False}

    def threads(self, run: RunSettings, num_cpus: int) -> tuple[int | None, int | None]:
        """Returns one for sampling, and half of the logical CPUs for learning: agents and predictors work meanwhile."""
        return run.sampling_threads or 1, run.learning_threads or min(max(1, num_cpus // 2), MAX_LEARNING_THREADS)

    def columns(self, config: "Config") -> tuple[int, int]:
        """Returns the full-length segments of a batch, twice: there is one learner."""
        return (-(-config.min_training_batch // config.run.horizon),) * 2

    def check(self, config: "Config", algo: "Algo") -> None:
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
        if config.min_training_batch > run.steps:
            raise UsageError(
                f"min_training_batch={config.min_training_batch} is never reached in steps={run.steps}: nothing would "
                "be learned; make one of them smaller or larger"
            )
        if run.reset_mode == "wait":
            raise UsageError("reset_mode=wait waits for the end of a rollout, which agents do not have; use immediate")
        if run.workers is not None or run.envs_per_worker is not None:
            raise UsageError(
                "workers and envs_per_worker are of the alternating sampler; with sampler=queued, each environment of "
                "--envs has a process of its own: omit them"
            )
        if run.deterministic and config.queues.dynamic_adjustment:
            raise UsageError(
                "dynamic_adjustment goes by the time that things take, deterministic runs must not: omit one"
            )
        _check_number_of_agents(config)
        _check_memory_of_agents(config, algo)

    def build(self, config: "Config", policy: Any, settings: "SamplerConfig", replay: Any) -> "Sampler":
        from accel_rl.samplers.queued.sampler import QueuedSampler

        return QueuedSampler(config.spec, config.batch, policy, settings, config.device, _queue_config(config), replay)

    def simulated_in(self, config: "Config") -> str:
        return count(config.run.envs, "agent")

    def show_simulators(self, config: "Config") -> str | None:
        queues, agents = config.queues, count(config.run.envs, "agent")
        text = f"agents      {agents}, {count(queues.predictors, 'predictor')}, {count(queues.trainers, 'trainer')}"
        if queues.dynamic_adjustment:
            text += f", adjusted every {queues.adjustment_interval_s:g} s (up to {_max_agents(config)} agents)"
        return f"{text}; batches of at least {config.min_training_batch} steps"

    def tunable(self, config: "Config", tune_envs: bool) -> dict[str, list[int]]:
        threads = list(range(1, MOST_QUEUE_THREADS + 1))
        agents = list(range(1, MOST_AGENTS_PER_CPU * config.plan.topology.num_busy + 1))
        return {"envs": agents, "predictors": threads, "trainers": threads}

    def fixed_for_tuning(self, config: "Config") -> dict[str, Any]:
        """Returns the present size of a batch for any number of agents, and counts that are not adjusted."""
        return {"min_training_batch": config.min_training_batch, "dynamic_adjustment": False}

    def note_on_envs(self, config: "Config", is_tuned: bool) -> str:
        return "envs are the agents; the batch that is learned from stays as it is"

    def steps_held(self, config: "Config") -> int:
        queues, run = config.queues, config.run
        return queues.training_queue * run.envs * run.horizon + (queues.trainers + 1) * config.min_training_batch


SAMPLER_KINDS: dict[str, SamplerKind] = {
    "alternating": Alternating(),
    "serial": Serial(),
    "queued": Queued(),
    "device": Device(),
}


# ---- the queued sampler's settings and limits ----


def _queue_config(config: "Config") -> "QueueConfig":
    from accel_rl.samplers.queued.sampler import QueueConfig

    queues = config.queues
    return QueueConfig(
        num_predictors=queues.predictors,
        num_trainers=queues.trainers,
        prediction_batch=queues.prediction_batch,
        min_training_batch=config.min_training_batch,
        places=queues.training_queue,
        max_agents=_max_agents(config),
        threads=config.plan.sampling_threads,
        deterministic=config.run.deterministic,
        adjustment_interval_s=queues.adjustment_interval_s if queues.dynamic_adjustment else None,
        adjustment_objective=queues.adjustment_objective,
    )


def _max_agents(config: "Config") -> int:
    """Returns the largest possible number of agents: the one at the start, unless it is adjusted."""
    return config.queues.max_agents or config.run.envs


def _check_number_of_agents(config: "Config") -> None:
    """Raises UsageError if there are more agents than queues or file descriptors allow."""
    from accel_rl.samplers.queued.slots import QUEUE_LENGTH

    run, queues, agents = config.run, config.queues, _max_agents(config)
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


def _check_memory_of_agents(config: "Config", algo: "Algo") -> None:
    """Raises UsageError if agents (with their slots and replays) or batches do not fit into memory."""
    import torch

    from accel_rl.algos.agent_tasks import AgentTasks
    from accel_rl.hardware.host_memory import check_fits
    from accel_rl.samplers.queued.agent_replay import auxiliary_layout
    from accel_rl.samplers.queued.batches import num_columns
    from accel_rl.samplers.queued.slots import shared_layout

    run, spec, host = config.run, config.spec, torch.device("cpu")
    tasks = AgentTasks.of(algo)
    replay = tasks.agent_replay_config(run.envs, run.seed) if tasks else None
    layout = shared_layout(spec, run.horizon, 1, 1, auxiliary_layout(spec, replay) if replay else None)
    segment = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in layout.values())
    row = math.prod(spec.row_shape) * spec.row_dtype.itemsize
    agent = (1 + config.queues.training_queue) * segment + AGENT_BYTES + (replay.size * row if replay else 0)
    check_fits(run.envs * agent, run.envs, "envs", host)
    least = config.min_training_batch
    columns = (config.queues.trainers + 1) * num_columns(least, run.horizon)
    check_fits(columns * segment, least, "min_training_batch", host)
