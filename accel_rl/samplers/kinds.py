"""The kinds of sampler: how each is planned, checked, built, described and tuned. settings/sampler_kinds.py lists them.

Importing this module imports neither torch nor NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from accel_rl.config.run_settings import RunSettings
from accel_rl.errors import UsageError, count
from accel_rl.hardware.placement import Plan, divides_evenly

if TYPE_CHECKING:
    from accel_rl.algos.auxiliary import AuxiliaryTasks
    from accel_rl.algos.base import Algo
    from accel_rl.samplers.base import Sampler, SamplerConfig
    from accel_rl.settings.resolve import Config

MAX_WORKERS_PER_CPU = 2  # limit of the tuner's search
ENVS_FACTORS = (0.5, 1, 2, 4)  # the tuner tries these multiples of the run's number of environments


class SamplerKind:
    """A kind of sampler. The methods defined here suit one that steps environments in the learner's process."""

    sampler: ClassVar[str]
    """The sampler as "module:Class" within accel_rl.samplers; only `build` imports it, since it imports torch."""
    Settings: ClassVar[Any] = None
    """A dataclass of the settings that only this kind has, if it has any. Every run has them as flags."""
    title: ClassVar[str] = ""
    """The heading of these flags."""
    left_to_the_machine: ClassVar[tuple[str, ...]] = ()
    """The settings among these that `complete` chooses for the machine."""
    merges_rollouts = False
    """True if rollouts are merged from segments of different lengths (`Algo.learns_from_segments`)."""

    # ---- how it is planned ----

    def preset_changes(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """Returns settings that replace those of presets, to suit this kind. chosen: the user's own settings."""
        return {}

    def complete(self, settings: Any, run: RunSettings, plan: Plan) -> Any:
        """Returns an instance of `Settings` with the defaults that depend on the run. Raises UsageError."""
        return settings

    def requested_workers(self, run: RunSettings) -> int | None:
        """Returns how many simulator processes the settings ask for; None: as many as fit the machine."""
        return 0

    def threads(self, run: RunSettings, num_cpus: int) -> tuple[int | None, int | None]:
        """Returns torch's threads for sampling and for learning; None: make_plan chooses. num_cpus: for the network."""
        return run.sampling_threads, run.learning_threads

    # ---- how it is checked and built ----

    def columns(self, config: "Config") -> tuple[int, int]:
        """Returns the columns of a rollout of all learners that update together, and of this learner's."""
        return config.local_envs if config.is_central else config.run.envs, config.local_envs

    def check(self, config: "Config", algo: "Algo", tasks: "AuxiliaryTasks | None") -> None:
        """Raises UsageError for settings that this kind does not support. tasks: the run's auxiliary tasks."""

    def own_arguments(self, config: "Config", tasks: "AuxiliaryTasks | None") -> dict[str, Any]:
        """Returns arguments that only this kind's constructor takes. tasks: the tasks that learn from its rollouts."""
        return {}

    def build(
        self, config: "Config", policy: Any, settings: "SamplerConfig", tasks: "AuxiliaryTasks | None"
    ) -> "Sampler":
        """Makes the sampler. tasks: the auxiliary tasks that learn from its rollouts."""
        own = self.own_arguments(config, tasks)
        module, name = self.sampler.split(":")
        make = getattr(importlib.import_module(f"accel_rl.samplers.{module}"), name)
        sampler: Sampler = make(config.spec, config.batch, policy, settings, config.device, **own)
        return sampler

    # ---- how it is described ----

    def simulated_in(self, config: "Config") -> str:
        """Describes where environments are stepped, as in "100 environments in 4 workers"."""
        return "this process"

    def show_simulators(self, config: "Config") -> str | None:
        """Returns a line about the sampler's processes; None: the plan's own line describes them."""
        return None

    # ---- how it is tuned ----

    def tunable(self, config: "Config", tune_envs: bool) -> dict[str, list[int]]:
        """Returns values to try, by setting, that change a run's speed but not what it learns. tune_envs: includes the
        number of environments, which does change it."""
        envs, threads = config.run.envs, list(range(1, config.plan.topology.num_busy + 1))
        values = {"envs": [int(envs * factor) for factor in ENVS_FACTORS if envs * factor >= 2]} if tune_envs else {}
        if config.device == "cpu":  # with a GPU there is almost nothing for threads to do
            values |= {"learning_threads": threads, "sampling_threads": threads}
        return values

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
        """Returns the most steps that the sampler holds before the learner gets them."""
        return 0


class Serial(SamplerKind):
    """A sampler whose environments are all stepped by the learner's process."""

    sampler = "serial:SerialSampler"


class Alternating(SamplerKind):
    """A sampler with workers, which step two groups of environments; the network serves the groups in turn."""

    sampler = "alternating:AlternatingSampler"

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

    def simulated_in(self, config: "Config") -> str:
        return count(config.workers * config.rank_info.size, "worker")

    def tunable(self, config: "Config", tune_envs: bool) -> dict[str, list[int]]:
        values = super().tunable(config, tune_envs)
        most, largest = MAX_WORKERS_PER_CPU * config.plan.topology.num_busy, max(values.get("envs", [config.run.envs]))
        # Only numbers that divide the environments: a worker serves both groups or one of them.
        workers = {"workers": [n for n in range(1, most + 1) if divides_evenly(largest, n)]}
        envs = {"envs": values.pop("envs")} if tune_envs else {}
        return {**envs, **workers, **values}


class Device(SamplerKind):
    """A sampler of environments that come as one batch: the learner's process steps it, on the policy's device."""

    sampler = "device:DeviceSampler"

    def preset_changes(self, chosen: dict[str, Any]) -> dict[str, Any]:
        return {"sampling_threads": None}  # no simulators need the CPUs: 1,024 CartPoles gain 30 % on two

    def check(self, config: "Config", algo: "Algo", tasks: "AuxiliaryTasks | None") -> None:
        from gymnasium import spaces

        run, spec = config.run, config.spec
        structured = spec.action_space if isinstance(spec.action_space, spaces.Dict | spaces.Tuple) else None
        for what, space in (("observations", spec.nested_space), ("actions", structured)):
            if space is not None:
                raise UsageError(
                    f"{run.env}: {what} of type {type(space).__name__} are not supported on a device; use one array"
                )
        reset_mode, reset = "immediate", "is not the environments' own"
        if config.env.simulator == "cuda":
            reset_mode, reset = "reserve", "does not start games from prepared states, as simulator=cuda does"
        refused = {
            "wrappers": (",".join(run.wrappers), "are put around single environments"),
            "reset_mode": (run.reset_mode if run.reset_mode != reset_mode else "", reset),
            "on_env_error": (run.on_env_error if run.on_env_error != "fail" else "", "replaces single environments"),
            "workers": (run.workers, "asks for simulator processes"),
            "envs_per_worker": (run.envs_per_worker, "asks for simulator processes"),
        }
        for name, (value, why) in refused.items():
            if value:
                raise UsageError(f"sampler=device steps one batch of environments, but {name}={value} {why}: omit it")

    def simulated_in(self, config: "Config") -> str:
        return "one batch on the network's device"
