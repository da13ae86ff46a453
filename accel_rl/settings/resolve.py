"""Resolves names, files and flags to one checked configuration: default < preset < --config file < flag."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_rl.config.atari_options import AtariOptions
from accel_rl.config.fields import check_used, pick
from accel_rl.config.learners import LearnerSettings, RankInfo, check_learners, launched_rank_info
from accel_rl.config.presets import KINDS, check_variant, load_preset, names_in, preset_and_base, preset_settings
from accel_rl.config.run_settings import RunSettings
from accel_rl.config.sources import overlay, read_yaml
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.batches.vector_batch import check_reset_mode
from accel_rl.envs.games.atari import game_name, make_options
from accel_rl.envs.games.emulator_choice import check_simulator, check_wrappers, choose_simulator, runs_grid_twin
from accel_rl.envs.make import ENVPOOL, import_name, is_vector
from accel_rl.envs.probe import probe_spec
from accel_rl.envs.spaces.conversion import picture_shapes
from accel_rl.envs.spaces.pictures import LARGE, is_small
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.errors import UsageError
from accel_rl.hardware.devices import find_device, find_devices, gpu_has_bf16, gpu_node, num_gpus
from accel_rl.hardware.instructions import has_bf16
from accel_rl.hardware.placement import Plan, make_plans, server_seconds
from accel_rl.hardware.topology import read_topology
from accel_rl.samplers.kinds import SamplerKind
from accel_rl.settings.names import built_in_setting_names, run_setting_names, unknown_setting
from accel_rl.settings.sampler_kinds import SAMPLER_KINDS

if TYPE_CHECKING:
    from accel_rl.run_folder.initial_policy import InitialPolicy

Values = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """A resolved run: its settings and their meaning for the learner at `rank_info`."""

    run: RunSettings
    algo_class: Any
    algo: Any  # an instance of algo_class.Settings
    env: EnvConfig
    spec: EnvSpec
    schedule_steps: int
    learners: LearnerSettings
    sampler_settings: dict[type, Any]  # an instance of each `SamplerKind.Settings`, by its class
    rank_info: RankInfo
    devices: tuple[str, ...]  # one for each learner on this machine
    plans: tuple[Plan, ...]  # the logical CPUs and threads of each of these learners
    trust: bool = False  # allows resuming from another user's checkpoint
    initial: "InitialPolicy | None" = None  # what a new run takes from a trained policy

    @property
    def plan(self) -> Plan:
        """This learner's logical CPUs and threads."""
        return self.plans[self.rank_info.local_rank]

    @property
    def device(self) -> str:
        """This learner's device."""
        return self.devices[self.rank_info.local_rank]

    @property
    def local_envs(self) -> int:
        """Number of environments of this learner."""
        return self.run.envs // self.rank_info.size

    @property
    def workers(self) -> int:
        """Number of simulator processes of this learner; 0 with the serial sampler."""
        return len(self.plan.worker_cpus)

    @property
    def sampler_kind(self) -> SamplerKind:
        """The run's kind of sampler, which plans, builds and describes it."""
        return SAMPLER_KINDS[self.run.sampler]

    @property
    def batch(self) -> BatchConfig:
        """This learner's environments."""
        return BatchConfig(
            env=self.env,
            seed=self.run.seed,
            first_env=self.rank_info.rank * self.local_envs,
            reset_mode=self.run.reset_mode,
            decorrelation_steps=self.run.decorrelation_steps,
            restart_on_error=self.run.on_env_error == "restart",
            env_threads=max(1, self.plan.topology.num_busy // max(1, self.workers)),
        )

    @property
    def is_central(self) -> bool:
        """True if a central store holds the parameters."""
        return self.learners.update == "central_store"

    def of_learner(self, rank: int) -> "Config":
        """Returns the same run as another learner on this machine sees it."""
        rank_info = RankInfo(rank, self.rank_info.size, rank, self.rank_info.local_size)
        return replace(self, rank_info=rank_info, run=replace(self.run, device=self.devices[rank]))

    def as_dict(self) -> Values:
        """Returns all settings in one flat mapping, as config.yaml holds it; it resolves to this configuration."""
        atari = self.env.options if game_name(self.env.env_id) else {}
        values = {**asdict(self.run), **asdict(self.learners)}
        for settings in self.sampler_settings.values():
            values |= asdict(settings)
        values |= {**asdict(self.algo), **atari}
        # With several learners, only the user's setting, since a number chosen here may differ between machines.
        asked = self.sampler_kind.requested_workers(self.run)
        workers = (asked if self.rank_info.size > 1 else self.workers) or self.run.workers
        values |= {"workers": workers, "envs_per_worker": None}
        if self.rank_info.size > 1 and (self.learners.devices or self.device != "cpu"):
            values["device"] = "auto"  # each learner has its own
        values |= {"schedule_steps": self.schedule_steps}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def resolve(
    given: Values, config_file: Path | None = None, spec: EnvSpec | None = None, function: bytes | None = None
) -> Config:
    """Resolves the given settings, a file of settings and presets to one configuration.

    spec: the environment's, if known already. function: the pickled function that makes it, if only a program has it.
    Raises UsageError for settings that are unknown, wrong or do not fit together, RunError if the environment cannot be
    built."""
    file = read_yaml(config_file, "settings") if config_file else {}
    chosen = overlay(file, given)
    algo_name = str(chosen.get("algo", RunSettings.algo))
    variant = load_preset(str(chosen["preset"])) if chosen.get("preset") not in (None, "null") else {}
    algo_class, presets = find_algo(algo_name)
    if variant:
        check_variant(str(chosen["preset"]), variant, algo_name)
    atari = {f.name for f in fields(AtariOptions)}
    others = set() if game_name(str(chosen.get("env", RunSettings.env))) else atari  # that this environment ignores
    for name, settings in (("preset", names_in(variant) - others), ("env_preset", atari)):
        own = (None, file.get(name), algo_name)
        if settings and settings <= file.keys() and given.get(name) not in own:
            raise UsageError(f"{name}={given[name]} changes nothing: {config_file} already has all of its settings")
    names = setting_names(algo_class)
    for name in chosen:
        if name not in names:
            raise unknown_setting("setting", name, names, of_others=built_in_setting_names())

    env, spec, below = _environment([*presets, variant], chosen, spec, function)
    # A preset normalizes only where that is possible; a user who asks for it elsewhere gets an error.
    takes_bytes = spec.is_pixels and not is_small(spec.observation_shape) and ":" not in str(chosen.get("network"))
    if not (spec.is_numbers or takes_bytes):
        below["normalize_observations"] = False
    if not _takes_preset_network(spec):
        below["network"] = None
    by_preset = SAMPLER_KINDS.get(str(below.get("sampler")))
    if spec.on_device and not (by_preset and by_preset.merges_rollouts):
        below["sampler"] = "device"
    sampler = overlay(below, chosen).get("sampler", RunSettings.sampler)
    if (sampler == "device") != spec.on_device and sampler in SAMPLER_KINDS:
        single = "is a single one: use --sampler alternating, or a factory as in docs/environments.md"
        what = "returns a batch on a device: use --sampler device" if spec.on_device else single
        if env.simulator == "cuda":
            what = "with simulator=cuda is stepped on the GPU: use --sampler device, or --simulator native"
        raise UsageError(f"sampler={sampler} cannot step this environment: {env.env_id} {what}")
    if sampler in SAMPLER_KINDS:
        below |= SAMPLER_KINDS[sampler].preset_changes(chosen)
    if "optimizer" in chosen and chosen["optimizer"] != below.get("optimizer"):
        below.pop("optimizer_options", None)  # these are another optimizer's
    values = overlay(below, chosen) | {"algo": algo_name, "env": env.env_id}

    learners, rank_info, devices = _learners(pick(RunSettings, values), pick(LearnerSettings, values))
    if "envs" not in chosen:  # a preset's number is for one learner
        values["envs"] = values.get("envs", RunSettings.envs) * rank_info.size
    run, algo = pick(RunSettings, values), pick(algo_class.Settings, values)
    check_learners(learners, rank_info, run.envs)
    device = devices[rank_info.local_rank]
    if env.simulator == "cuda" and device == "cpu" and not runs_grid_twin():
        raise UsageError(
            f"simulator=cuda needs an NVIDIA GPU, but device={device}; --simulator native plays the same games on CPUs"
        )
    precision, reset_mode = _precision(run, device, takes_bytes), _reset_mode(run.reset_mode, env)
    run = replace(run, device=device, precision=precision, reset_mode=reset_mode)
    step_s = spec.step_s if _leaves_workers_open(values) else None
    plans = _plans(run, learners, rank_info, devices, step_s, _server_seconds(spec, algo_class))
    sampler_settings = {
        kind.Settings: kind.complete(pick(kind.Settings, values), run, plans[0])
        for kind in SAMPLER_KINDS.values()
        if kind.Settings
    }
    check_used([run, algo, *sampler_settings.values()], chosen)
    steps = run.schedule_steps or run.steps
    return Config(run, algo_class, algo, env, spec, steps, learners, sampler_settings, rank_info, devices, plans)


def _precision(run: RunSettings, device: str, takes_bytes: bool) -> str:
    """Returns the network's precision on this device. takes_bytes: a built-in network takes pictures of bytes, which
    are exact in bfloat16."""
    if run.precision not in ("auto", "fast"):
        return run.precision
    if device == "cpu":
        return "bf16" if run.precision == "fast" and has_bf16() else "float32"
    if run.deterministic:
        return "float32"
    return "bf16" if takes_bytes and gpu_has_bf16(device) else "tf32"


# ---- the algorithm ----


def find_algo(name: str) -> tuple[Any, list[Values]]:
    """Returns an algorithm's class and its presets: the base's and the variant's, for a variant.

    name: a preset, or package.module:Class. Raises UsageError for an unknown name, a class that is not an Algo,
    settings that clash with a run's, and `defaults` for settings that do not exist."""
    from accel_rl.algos import Algo

    presets = [] if ":" in name else preset_and_base(name)
    algo_class = import_name(presets[-1]["algo"] if presets else name, "algorithm")
    if not (isinstance(algo_class, type) and issubclass(algo_class, Algo)):
        raise UsageError(f"{name} is not a subclass of accel_rl.algos.Algo")
    clash = {f.name for f in fields(algo_class.Settings)} & {*run_setting_names()}
    if clash:
        raise UsageError(f"{name}: {', '.join(sorted(clash))} are settings of every run; give yours other names")
    if not presets:
        presets, names = [algo_class.defaults], setting_names(algo_class)
        for setting in (setting for kind in KINDS for setting in preset_settings(presets, kind, is_box=True)):
            if setting not in names:
                raise unknown_setting("setting", setting, names, f"(in the defaults of {name})")
    return algo_class, presets


def setting_names(algo_class: Any) -> list[str]:
    """Returns the names of all settings of a run with this algorithm."""
    return [*run_setting_names(), *(f.name for f in fields(algo_class.Settings))]


# ---- the environment ----


def _environment(
    presets: list[Values], chosen: Values, spec: EnvSpec | None, function: bytes | None
) -> tuple[EnvConfig, EnvSpec, Values]:
    """Returns the environment, its spec (the given one, if any), and the presets' settings for it.

    Observations and actions decide which blocks of a preset apply, but the blocks may change the environment. So it is
    probed without them, and again if they change it. Raises UsageError if other blocks apply then. Atari games need no
    probe: their block is pixels."""
    common = overlay(preset_settings(presets), chosen)
    run = pick(RunSettings, common)
    is_timed = _leaves_workers_open(common)
    blocks, probed, probed_spec = ("pixels", False), None, spec
    if game_name(run.env) is None:
        probed = _env_config(common, chosen, function)
        probed_spec = spec or probe_spec(probed, run.env_build_timeout_s, is_timed)
        blocks = _blocks(probed_spec)
    below = preset_settings(presets, *blocks)
    env = _env_config(overlay(below, chosen), chosen, function)
    if spec is None:
        known = probed_spec if env == probed else None
        spec = known or probe_spec(env, run.env_build_timeout_s, is_timed)
        if is_vector(env) and not spec.on_device:
            check_reset_mode(str(overlay(below, chosen).get("reset_mode")), env.env_id)
    if game_name(env.env_id):  # a resumed run may change its simulator
        spec = replace(spec, on_device=env.simulator == "cuda")
    if probed and _blocks(spec) != blocks:
        kinds = [f"{kind} with Box actions" if is_box else kind for kind, is_box in (blocks, _blocks(spec))]
        raise UsageError(
            f"with the preset's settings for {kinds[0]}, {run.env} needs those for {kinds[1]}; set env_options outside "
            f"of {blocks[0]}"
        )
    return replace(env, mask_sources=spec.mask_sources), spec, below


def _blocks(spec: EnvSpec) -> tuple[str, bool]:
    """Returns the preset's block for these observations, and True if its part for Box actions also applies."""
    is_pixels = spec.is_picture and not is_small(spec.observation_shape)
    return "pixels" if is_pixels else "vectors", spec.has_box_actions


def _takes_preset_network(spec: EnvSpec) -> bool:
    """Tells whether a preset's network fits: for pixels, pictures must be large; for vectors, there must be none."""
    if _blocks(spec)[0] == "pixels":
        return min(spec.observation_shape[1:]) >= LARGE
    return not picture_shapes(spec)


def _env_config(values: Values, chosen: Values, function: bytes | None) -> EnvConfig:
    """Combines env, env_preset, env_options and Atari settings into one environment, and chooses its simulator.

    An environment other than an Atari game ignores a preset's Atari settings and refuses the user's."""
    run = pick(RunSettings, values)
    atari = {f.name: values[f.name] for f in fields(AtariOptions) if f.name in values}
    game = game_name(run.env)
    check_simulator(EnvConfig(run.env, simulator=run.simulator))
    check_wrappers(EnvConfig(run.env, wrappers=run.wrappers))
    if game is None:
        for name in atari.keys() & chosen.keys():
            raise UsageError(f"{name} is a setting of Atari games, but {run.env} is not one; use env_options")
        sources = None if run.action_masks == "auto" else ()
        return EnvConfig(
            run.env, run.env_preset, run.env_options, wrappers=run.wrappers, mask_sources=sources, function=function
        )
    if run.env_options:
        raise UsageError(f"{game} takes no env_options; Atari games have their own settings, as in frame_skip=4")
    env = EnvConfig(game, run.env_preset, asdict(make_options(run.env_preset, atari)), run.simulator)
    return replace(env, simulator=choose_simulator(env)[0])


def _reset_mode(name: str, env: EnvConfig) -> str:
    is_atari = game_name(env.env_id) is not None
    if name == "reserve" and not is_atari:
        raise UsageError("reset_mode=reserve needs states that can be copied, which only Atari games have")
    return name if name != "auto" else ("reserve" if is_atari else "immediate")


# ---- learners, devices, workers ----


def _learners(run: RunSettings, settings: LearnerSettings) -> tuple[LearnerSettings, RankInfo, tuple[str, ...]]:
    """Returns the settings with full device names, this process's rank, and the devices on this machine."""
    if rank_info := launched_rank_info():
        return settings, rank_info, _launched_devices(run, settings, rank_info)
    listed = settings.devices or ("all" if settings.learners_per_gpu > 1 else None)
    if listed and run.device != "auto":
        raise UsageError(f"device={run.device} and devices={listed} both name devices; omit one of them")
    devices = find_devices(listed, settings.learners_per_gpu) if listed else (find_device(run.device),)
    several = ",".join(devices[:: settings.learners_per_gpu]) if len(devices) > 1 else None
    return replace(settings, devices=several), RankInfo(0, len(devices), 0, len(devices)), devices


def _launched_devices(run: RunSettings, settings: LearnerSettings, rank_info: RankInfo) -> tuple[str, ...]:
    """Returns the devices of the learners that torchrun has started on this machine."""
    if settings.devices:
        raise UsageError("torchrun itself starts a learner for each device: omit --devices")
    sees_one_gpu = num_gpus() == 1  # one per learner (SLURM's --gpus-per-task), or one that all share
    if run.device not in ("auto", "cpu") and rank_info.local_size > 1 and not sees_one_gpu:
        raise UsageError(f"device={run.device} would be shared by {rank_info.local_size} learners; omit it")
    if settings.update == "central_store":
        raise UsageError(
            "update=central_store needs the memory of one machine: start its learners with `accel-rl launch --devices "
            "...`, or use --update all_reduce with torchrun"
        )
    if run.device != "auto" or sees_one_gpu or not num_gpus():
        return (find_device(run.device),) * rank_info.local_size
    return tuple(find_device(f"cuda:{rank}") for rank in range(rank_info.local_size))


def _leaves_workers_open(values: Values) -> bool:
    """Tells whether the environment's measured cost may decide the number of workers: no setting fixes it or a sampler.

    It may not in evaluations by steps: their number of environments depends on the number of workers."""
    return all(values.get(name) is None for name in ("sampler", "workers", "envs_per_worker", "eval_steps"))


def _server_seconds(spec: EnvSpec, algo_class: Any) -> float:
    from accel_rl.algos import Algo

    learns_on_step = algo_class.on_step is not Algo.on_step
    return server_seconds(sees_pictures=bool(picture_shapes(spec)), learns_on_step=learns_on_step)


def _plans(
    run: RunSettings,
    learners: LearnerSettings,
    rank_info: RankInfo,
    devices: tuple[str, ...],
    step_s: float | None,
    server_s: float,
) -> tuple[Plan, ...]:
    """Returns the logical CPUs and numbers of threads of each learner on this machine.

    step_s: seconds per environment step, if they decide the number of workers. server_s: see make_plan."""
    kind, topology = SAMPLER_KINDS[run.sampler], read_topology(run.cpus)
    workers = kind.requested_workers(run)
    has_threads = run.env.startswith(ENVPOOL)  # then one worker steps it on all logical CPUs
    if has_threads and workers is None:
        workers = rank_info.size
    if workers and workers % rank_info.size:
        raise UsageError(
            f"workers={workers} do not split over {rank_info.size} learners; use a multiple of {rank_info.size}"
        )
    # Learners that see one GPU each all call it cuda:0 and don't know where the other GPUs are. If they relied on the
    # place of their own, each would divide the machine differently.
    knows_all = rank_info.local_size == 1 or learners.devices is not None or len({*devices}) > 1
    on_gpu = devices[0].startswith("cuda")
    sampling_threads, learning_threads = kind.threads(run, 1 if on_gpu else topology.num_busy)
    plans = make_plans(
        topology,
        run.envs // rank_info.size,
        workers and workers // rank_info.size,
        on_gpu=on_gpu,
        gpu_nodes=[gpu_node(device) if knows_all else None for device in devices],
        sampling_threads=sampling_threads,
        learning_threads=learning_threads,
        share=learners.share_processors,
        step_s=step_s,
        server_s=server_s,
        is_atari=game_name(run.env) is not None,
    )
    if not has_threads:
        return plans
    return tuple(replace(plan, worker_cpus=(None,) * len(plan.worker_cpus)) for plan in plans)
