"""Builds a run's objects from its resolved settings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from accel_rl.algos.auxiliary import AuxiliaryTasks, add_heads
from accel_rl.algos.base import Algo, RunInfo
from accel_rl.algos.prepared_tasks import PreparedTasks
from accel_rl.envs.make import import_name
from accel_rl.envs.spaces.conversion import picture_shapes
from accel_rl.envs.spaces.pictures import is_small
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.allocator import keep_freed_memory
from accel_rl.hardware.placement import divides_evenly, learning_threads_for
from accel_rl.models.actor_critic import Network
from accel_rl.models.layers import expect_changes
from accel_rl.models.precision import set_precision
from accel_rl.models.trunks import NETWORKS, add_layer_norms, make_trunk
from accel_rl.run_folder.initial_policy import read_initial_policy, shared_buffers
from accel_rl.run_folder.policy_file import check_state, describe
from accel_rl.samplers.base import MAX_GAME_STEPS, Sampler, SamplerConfig
from accel_rl.settings.resolve import Config
from accel_rl.training import gpu_consoles, tracking
from accel_rl.training.log import logger
from accel_rl.training.out_of_memory import advice_on_memory
from accel_rl.updates import Exchange, Update
from accel_rl.updates.all_reduce import AllReduce
from accel_rl.updates.compiled_calls import CompiledCalls, why_not_compiled
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import Optimizer, for_one_learner, make_optimizer
from accel_rl.updates.parameter_store import CentralStore
from accel_rl.updates.store_exchange import StoreExchange, shared_state

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers that use each weight many times
FLOPS_PER_PRODUCT = 6  # for a weight times an input: 2 in the forward pass, 4 in the backward pass


def check(config: Config, devices: Sequence[str] | None = None) -> Config:
    """Checks a run before it writes or starts anything; returns it with precision and learning threads adjusted.

    The policy supports the returned precision. The updates keep the returned number of learning threads busy, unless
    the user chose it. devices: those of the learners whose memory is counted, named as this learner names them (None:
    all on this machine). Raises UsageError for settings that do not fit together; RunError if a GPU is out of memory.
    """
    with advice_on_memory(config):
        algo = _check(config, config.devices if devices is None else tuple(devices))
    return _choose_learning_threads(_without_bf16(config, algo), algo)


def _check(config: Config, devices: tuple[str, ...]) -> Algo:
    is_elsewhere = config.rank_info.size > 1 and config.device != "cpu"
    if is_elsewhere:  # on a GPU, this process would hold part of its memory
        config = on_cpu(config)
    algo = build_algo(config)
    tasks = make_tasks(algo)
    check_state(algo.policy.state_dict())
    describe(config.as_dict(), config.spec)
    config.sampler_kind.check(config, algo, tasks)
    tracking.check(config)
    build_update(config, algo.policy)
    if config.is_central:
        build_store(config).close()
    info = RunInfo(config.run.steps, config.run.envs, devices)
    algo.validate(info)
    if tasks:
        tasks.validate(info)
    settings = replace(sampler_config(config), window=algo.window.steps if algo.window else 0)
    gpu_consoles.check(config, settings, devices)
    return algo


def _without_bf16(config: Config, algo: Algo) -> Config:
    """Falls back to float32 or TF32 if the policy does not support bfloat16, as a user's own may not."""
    if config.run.precision != "bf16" or hasattr(algo.policy, "bf16"):
        return config
    precision = "float32" if config.device == "cpu" else "tf32"
    logger.warning("the policy of %s has no attribute bf16, so it computes in %s", config.run.algo, precision)
    return replace(config, run=replace(config.run, precision=precision))


def _choose_learning_threads(config: Config, algo: Algo) -> Config:
    """Limits the learning threads to as many as the updates keep busy, unless the user chose a number.

    Large pictures and a user's own convolutions keep all threads busy. An algorithm that learns between steps leaves
    the workers' logical CPUs to them."""
    convolutions = {module for module in algo.policy.modules() if isinstance(module, CONVOLUTIONS)}
    products = [getattr(layer, "num_products", 0) for layer in convolutions]
    is_large = any(not is_small(shape) for shape in picture_shapes(config.spec))
    if config.run.learning_threads is not None or not all(products) or (convolutions and is_large):
        return config
    num_weights = sum(each.numel() for each in algo.policy.parameters())
    num_weights -= sum(each.numel() for layer in convolutions for each in layer.parameters())
    num_products = num_weights + sum(products)
    num_threads = learning_threads_for(FLOPS_PER_PRODUCT * num_products * algo.samples_per_update)
    plans = []
    for plan in config.plans:
        num_free = plan.topology.num_busy - len(plan.worker_cpus) if algo.learns_on_step else plan.learning_threads
        plans.append(replace(plan, learning_threads=min(plan.learning_threads, num_threads, max(1, num_free))))
    return replace(config, plans=tuple(plans))


def on_cpu(config: Config) -> Config:
    """Returns the same run with learners on CPUs."""
    return replace(config, devices=("cpu",) * len(config.devices))


def build_algo(config: Config) -> Algo:
    """Makes the algorithm with its policy, initialized from the run's seed or a trained policy, on its device.

    Raises UsageError if the user's network does not fit the observations."""
    network = find_network(config.run.network, config.run.layer_norm)
    torch.manual_seed(config.run.seed)
    try:
        num_envs, local_envs = config.sampler_kind.columns(config)
        algo = config.algo_class(
            config.spec,
            config.algo,
            config.schedule_steps,
            num_envs,
            config.run.horizon,
            network,
            local_envs,
            config.sampler_kind.merges_rollouts,
        )
        add_heads(algo.policy, config.algo)
    except (RuntimeError, TypeError) as error:
        name = f"network {config.run.network}" if config.run.network else "default network (--network names another)"
        shape = config.spec.observation_shape
        raise UsageError(f"the {name} does not fit observations of shape {shape}: {error}") from error
    if config.initial:
        config.initial.give_to(algo)
    algo.policy.to(torch.device(config.device))
    set_precision(config.run.precision, config.device)
    if algo.learns_on_step:
        expect_changes(algo.policy)
    if config.run.precision == "bf16" and hasattr(algo.policy, "bf16"):
        algo.policy.bf16 = True
    return algo  # type: ignore[no-any-return]


def make_tasks(algo: Algo) -> AuxiliaryTasks | None:
    """Makes the auxiliary tasks named in the algorithm's settings, if any, without their replay."""
    return (PreparedTasks if algo.learns_from_segments else AuxiliaryTasks).of(algo)


def with_initial_policy(config: Config) -> Config:
    """Adds a trained policy's values to the configuration of a new run that begins with one (init_from).

    Raises UsageError if they do not fit."""
    source = config.run.init_from
    if source is None:
        return config
    return replace(config, initial=read_initial_policy(Path(source), build_algo(on_cpu(config)), config.as_dict()))


def build_algo_and_update(
    config: Config, store: CentralStore | None = None, all_reduce: bool = False
) -> tuple[Algo, Update]:
    """Makes the algorithm, ready to learn, and its update (see `build_update`).

    store: the central store (None: a new one, if the run has one at all)."""
    algo, make_update = build_algo(config), partial(build_update, config, all_reduce=all_reduce)
    tasks = make_tasks(algo)
    if config.is_central and store is None:
        store = build_store(config)
    update, seed = make_update(algo.policy, store=store, tasks=tasks), config.run.seed
    if rank := config.rank_info.rank:  # learners draw different numbers, but start with the same parameters
        seed = int(np.random.SeedSequence(seed, spawn_key=(0, rank)).generate_state(1)[0])
        torch.manual_seed(seed)
    algo.setup(seed, make_update)
    if tasks:
        tasks.setup(seed)
    return algo, update


def find_network(name: str | None, layer_norm: bool) -> Network | None:
    """Finds a trunk's factory. name: one of NETWORKS, or package.module:factory; None: the default one.

    Raises UsageError if there is none, or if layer_norm is set for the user's own layers."""
    if name and ":" in name:
        if layer_norm:
            raise UsageError(
                f"layer_norm=True is for the built-in networks, but network={name} is your own: put nn.LayerNorm into "
                "it, and use --no-layer-norm"
            )
        return import_name(name, "network")  # type: ignore[no-any-return]
    if name and name not in NETWORKS:
        raise unknown("network", name, list(NETWORKS), "(your own: package.module:factory)")
    network = NETWORKS[name] if name else None
    return (lambda spec: add_layer_norms((network or make_trunk)(spec))) if layer_norm else network


def build_optimizer(config: Config) -> Optimizer:
    """Makes the run's optimizer. Raises UsageError for an unknown optimizer or hyperparameter."""
    try:
        return make_optimizer(config.algo.optimizer, **config.algo.optimizer_options)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def build_update(
    config: Config,
    module: nn.Module,
    *,
    store: CentralStore | None = None,
    all_reduce: bool = False,
    tasks: AuxiliaryTasks | None = None,
) -> Update:
    """Makes the update of a network's parameters: by all-reduce, in a store that learners share, or for one learner.
    tasks: auxiliary tasks whose losses the update adds.

    Raises UsageError for an unknown optimizer or hyperparameter."""
    learners = config.learners
    if config.device == "cpu":
        keep_freed_memory()
    exchange: Exchange | None = AllReduce() if all_reduce else None
    optimizer = build_optimizer(config)
    if store:
        own_state, steps = learners.rule_state == "own", learners.updates_per_exchange
        exchange = StoreExchange(store, own_state=own_state, updates_per_exchange=steps)
    if exchange is None:
        optimizer = for_one_learner(optimizer)
    reason = why_not_compiled(config.run.compile, config.run.deterministic, module, store is not None)
    return Update(
        module,
        optimizer,
        config.algo.clip_grad_norm,
        exchange,
        cuda_graphs=config.run.cuda_graphs,
        compiled=None if reason else CompiledCalls(config.run.compile),
        tasks=tasks,
        log_norms=config.run.log_norms,
    )


def build_store(config: Config, state: dict[str, Any] | None = None) -> CentralStore:
    """Makes the central store of a run's parameters, with initial values or those of a checkpoint.

    Raises UsageError for optimizers that do not support it."""
    config, learners = on_cpu(config), config.learners
    algo = build_algo(config)
    buffers = shared_buffers(algo)
    if state:
        algo.policy.load_state_dict(state["policy"])
        for name, value in buffers.items():
            value.copy_(state["shared_buffers"][name])
    parameters = FlatParameters(algo.policy).values
    own_state, steps = learners.rule_state == "own", learners.updates_per_exchange
    shared = shared_state(build_optimizer(config), parameters, own_state=own_state, updates_per_exchange=steps)
    store = CentralStore(
        parameters, shared, num_chunks=learners.chunks, locks=learners.locks == "chunks", statistics=buffers
    )
    if state:
        build_update(config, algo.policy, store=store).load_state_dict(state["update"])
    return store


def build_training_sampler(config: Config, algo: Algo) -> Sampler:
    """Makes the sampler of the rollouts that the algorithm learns from."""
    tasks, window = make_tasks(algo), algo.window.steps if algo.window else 0
    terminal_frames = tasks is not None and tasks.needs_terminal_frames
    return build_sampler(config, algo.policy, tasks, window=window, terminal_frames=terminal_frames)


def build_sampler(config: Config, policy: Any, tasks: AuxiliaryTasks | None = None, **changes: Any) -> Sampler:
    """Makes the run's sampler. tasks: the auxiliary tasks that learn from its rollouts. changes: fields of
    SamplerConfig that differ from the run's."""
    settings = replace(sampler_config(config), **changes)
    return config.sampler_kind.build(config, policy, settings, tasks)


def sampler_config(config: Config) -> SamplerConfig:
    """Returns the sampler's settings. Raises UsageError if the numbers do not divide evenly."""
    run = config.run
    # Synchronous learners share an evaluation. Rank 0 of asynchronous learners plays it alone.
    eval_steps = run.eval_steps and run.eval_steps // (1 if config.is_central else config.rank_info.size)
    return SamplerConfig(
        num_envs=config.local_envs,
        horizon=run.horizon,
        num_learners=config.rank_info.size,
        num_workers=config.workers,
        num_evaluation_envs=evaluation_envs(eval_steps, config.local_envs, config.workers or 1) if eval_steps else None,
        worker_cpus=config.plan.worker_cpus,
        spin=config.plan.server_is_reserved,
        cuda_graphs=run.cuda_graphs,
        env_timeout_s=run.env_timeout_s,
        env_build_timeout_s=run.env_build_timeout_s,
    )


def evaluation_envs(steps: int, num_envs: int, num_workers: int) -> int:
    """Returns the number of environments that share an evaluation of this many steps.

    It is the largest number that gives each environment enough steps for the longest game. Each worker needs at least
    one environment. The number divides evenly over the workers if num_envs does."""
    is_even = divides_evenly(num_envs, num_workers)
    even = range(2, num_envs + 1, 2)
    possible = [n for n in even if (divides_evenly(n, num_workers) if is_even else n >= num_workers)] or [num_envs]
    return max((n for n in possible if n * MAX_GAME_STEPS <= steps), default=possible[0])
