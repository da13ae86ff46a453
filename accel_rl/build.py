"""From a resolved configuration to the objects of a run."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from accel_rl.affinity import fits
from accel_rl.algos.base import Algo
from accel_rl.config import Config
from accel_rl.envs.batch import BatchConfig
from accel_rl.envs.gym import import_name
from accel_rl.errors import UsageError, unknown
from accel_rl.models.actor_critic import Network
from accel_rl.models.trunks import NETWORKS
from accel_rl.samplers.alternating import AlternatingSampler
from accel_rl.samplers.common import MAX_GAME_STEPS, Sampler, SamplerConfig
from accel_rl.samplers.serial import SerialSampler
from accel_rl.updates import LocalUpdate
from accel_rl.updates.memory import keep_freed_memory
from accel_rl.updates.rules import make_rule


def check(config: Config) -> None:
    """Raises UsageError for settings that do not fit together, before anything of a run is written or started."""
    algo = build_algo(config)
    build_update(config, algo.policy)
    algo.check(config.run.steps)
    sampler_config(config)


def build_algo(config: Config) -> Algo:
    """The algorithm with its policy, freshly initialised from the run's seed, on the run's device.

    Raises UsageError if the user's network does not fit the observations."""
    network = find_network(config.run.network) if config.run.network else None
    torch.manual_seed(config.run.seed)
    try:
        algo = config.algo_class(
            config.spec, config.algo, config.schedule_steps, config.run.envs, config.run.horizon, network
        )
    except (RuntimeError, TypeError) as error:
        name = config.run.network or "by default (`--network` names another one)"
        shape = config.spec.observation_shape
        raise UsageError(f"the network {name} does not fit observations of shape {shape}: {error}") from error
    algo.to(torch.device(config.run.device))
    if config.run.bf16:
        if not hasattr(algo.policy, "bf16"):
            raise UsageError(f"bf16 is not offered by the policy of {config.run.algo}")
        algo.policy.bf16 = True
    return algo  # type: ignore[no-any-return]


def find_network(name: str) -> Network:
    """A trunk's factory, by one of our names or as package.module:factory. Raises UsageError if there is none."""
    if ":" not in name and name not in NETWORKS:
        raise unknown("network", name, list(NETWORKS), "(your own: package.module:factory)")
    return NETWORKS.get(name) or import_name(name, "network")


def build_update(config: Config, module: nn.Module) -> LocalUpdate:
    """What changes a network's parameters. Raises UsageError for an unknown update rule or hyperparameter."""
    try:
        rule = make_rule(config.algo.optimizer, **config.algo.optimizer_options)
    except (ValueError, TypeError) as error:
        raise UsageError(f"optimizer: {error}") from None
    if config.run.device == "cpu":
        keep_freed_memory()
    run = config.run
    return LocalUpdate(
        module, rule, config.algo.clip_grad_norm, cuda_graphs=run.cuda_graphs, layer_norms=run.layer_norms
    )


def build_sampler(config: Config, policy: Any, **changes: Any) -> Sampler:
    """changes: fields of SamplerConfig that differ from the run's."""
    sampler_class = AlternatingSampler if config.run.sampler == "alternating" else SerialSampler
    settings = replace(sampler_config(config), **changes)
    return sampler_class(config.spec, batch_config(config), policy, settings, config.run.device)


def sampler_config(config: Config) -> SamplerConfig:
    """Raises UsageError where the numbers do not divide."""
    run = config.run
    return SamplerConfig(
        num_envs=run.envs,
        horizon=run.horizon,
        num_workers=config.workers,
        num_evaluation_envs=evaluation_envs(run.eval_steps, run.envs, config.workers or 1) if run.eval_steps else None,
        worker_cpus=config.plan.worker_cpus,
        spin=config.plan.server_is_reserved,
        cuda_graphs=run.cuda_graphs,
        env_timeout_s=run.env_timeout_s,
        env_build_timeout_s=run.env_build_timeout_s,
    )


def evaluation_envs(steps: int, num_envs: int, num_workers: int) -> int:
    """How many environments share an evaluation of so many steps: as many as leave each of them the time for the
    longest game, or else as few as the workers take. More would leave long games out."""
    possible = [n for n in range(2, num_envs + 1, 2) if fits(n, num_workers)] or [num_envs]
    return max((n for n in possible if n * MAX_GAME_STEPS <= steps), default=possible[0])


def batch_config(config: Config) -> BatchConfig:
    return BatchConfig(
        env=config.env,
        seed=config.run.seed,
        reset_mode=config.run.reset_mode,
        decorrelation_steps=config.run.decorrelation_steps,
        restart_on_error=config.run.on_env_error == "restart",
    )
