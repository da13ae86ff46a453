"""Policies, comparisons and setups that several tests of samplers use."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs import EnvConfig
from accel_rl.envs.batches.batch_simulator import prepare
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import PolicyStep, RecurrentInputs, TerminalFrames
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.gpu_action_server import GpuActionServer
from tests.helpers.forks import probe_spec

TOYS = "tests.helpers.toy_envs"
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})
PONG = EnvConfig("pong", options={"max_episode_steps": 9, "noop_max": 3, "frame_shape": (16, 16)})


class Echo:
    """A policy that acts by observation and noise together and records both, so that a wrong row or noise shows."""

    state_size = 0

    def __init__(self, num_actions: int):
        self.num_actions = num_actions
        self.observations: list[tuple[int, ...]] = []

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        return torch.rand(num_steps, num_envs, generator=generator, device=generator.device)

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        self.observations.append(tuple(observation.shape))
        digest = observation.flatten(1).double().sum(1)
        noise = torch.zeros(len(observation), device=observation.device) if noise is None else noise
        action = (digest + 1000 * noise).long() % self.num_actions
        return action, {"digest": digest, "noise": noise}, None


class Greedy(Echo):
    """A policy that acts by the observation alone, so that the number of noise columns does not matter."""

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        return super().act(observation, None, recurrent_inputs)


class SameNoise(Echo):
    """A policy whose noise is always drawn on the CPU, so that two devices act alike."""

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        self.drawn = getattr(self, "drawn", 0) + 1
        return torch.rand(num_steps, num_envs, generator=torch.Generator().manual_seed(self.drawn))


def spec_of(env: EnvConfig) -> EnvSpec:
    """Returns `probe_spec`'s result, probed once for each kind of environment."""
    return _SPECS.get(repr(env)) or _SPECS.setdefault(repr(env), probe_spec(env))


_SPECS: dict[str, EnvSpec] = {}


def make(sampler_class: Any, env: EnvConfig, config: SamplerConfig, policy: Any = None, **batch: Any) -> Any:
    spec, options = spec_of(env), BatchConfig(env, **{"seed": 3, **batch})
    policy = policy or Echo(int(spec.action_space.n))  # type: ignore[attr-defined]
    prepare(options)  # here, once: the processes that start simulators are forked from this one
    return sampler_class(spec, options, policy, config)


@contextlib.contextmanager
def closing(*samplers: Any) -> Iterator[None]:
    """Closes the samplers when the block ends, with or without an error."""
    try:
        yield
    finally:
        for sampler in samplers:
            sampler.close()


def use_gpu_server(sampler: Any, device: torch.device | str = "cpu", graphs: bool = True) -> Any:
    """Makes a GPU's action server choose the sampler's actions; it works on the CPU, too."""
    shares = isinstance(sampler, AlternatingSampler)
    sampler._server = GpuActionServer(
        sampler.spec,
        sampler.pool.train.arrays if shares else sampler._server.arrays,
        sampler._server.generator,
        replace(sampler.config, cuda_graphs=graphs),
        torch.device(device),
        sampler.pool.train.memory if shares else None,
    )
    sampler.seconds["gpu_wait"] = 0.0
    return sampler


KINDS = ("serial", "alternating", "device")


def make_kind(kind: str, env: EnvConfig, config: SamplerConfig, policy: Any = None, **batch: Any) -> Any:
    """Returns a sampler: serial, alternating, or device (an alternating one with a GPU's server on the CPU)."""
    sampler = make(SerialSampler if kind == "serial" else AlternatingSampler, env, config, policy, **batch)
    return use_gpu_server(sampler) if kind == "device" else sampler


FINALS = ["final_step", "final_env", "final_observation"]
PER_ENV = ["observation_rows", "age", "action", "reward", "terminated", "truncated", "valid", "reset"]


def assert_equal(first: Any, second: Any, what: str = "") -> None:
    """Asserts that two rollouts are equal bit for bit."""
    for name in PER_ENV + FINALS:
        assert torch.equal(getattr(first, name), getattr(second, name)), f"{what}: {name}"
    assert first.policy_outputs.keys() == second.policy_outputs.keys()
    for name in first.policy_outputs:
        assert torch.equal(first.policy_outputs[name], second.policy_outputs[name]), f"{what}: policy_outputs {name}"
    assert (first.games, first.first_step) == (second.games, second.first_step), what
    for part, names in (("recurrent_inputs", RecurrentInputs._fields), ("terminal_frames", TerminalFrames._fields)):
        of_first, of_second = getattr(first, part), getattr(second, part)
        assert (of_first is None) == (of_second is None), f"{what}: {part}"
        for name, one, other in zip(names, of_first or (), of_second or (), strict=False):
            assert torch.equal(one, other), f"{what}: {part}'s {name}"


def copy(rollout: Any, clone_tensor: Callable[[Tensor], Tensor] = Tensor.clone) -> Any:
    """Returns a rollout that outlives the next `collect`."""

    def clone(value: Any) -> Any:
        if isinstance(value, Tensor | np.ndarray):
            return clone_tensor(value) if isinstance(value, Tensor) else value.copy()
        if isinstance(value, RecurrentInputs | TerminalFrames):
            return type(value)(*map(clone, value))
        return {name: clone(v) for name, v in value.items()} if isinstance(value, dict) else value

    return replace(rollout, **{f.name: clone(getattr(rollout, f.name)) for f in fields(rollout)})


def to_cpu(rollout: Any) -> Any:
    """Returns a copy on the CPU."""
    return copy(rollout, lambda tensor: tensor.clone().cpu())


def columns_of(rollout: Any, envs: slice) -> Any:
    """Returns the rollout of some of the environments."""
    kept = (rollout.final_env >= envs.start) & (rollout.final_env < envs.stop)
    games = [game._replace(env=game.env - envs.start) for game in rollout.games if envs.start <= game.env < envs.stop]
    return replace(
        rollout,
        **{name: getattr(rollout, name)[:, envs] for name in PER_ENV},
        policy_outputs={name: rows[:, envs] for name, rows in rollout.policy_outputs.items()},
        final_step=rollout.final_step[kept],
        final_env=rollout.final_env[kept] - envs.start,
        final_observation=rollout.final_observation[kept],
        games=games,
        recurrent_inputs=rollout.recurrent_inputs
        and RecurrentInputs(*(rows[:, envs] for rows in rollout.recurrent_inputs)),
    )


class Flat(torch.nn.Module):
    """A network for pictures that are too small for convolutions."""

    def __init__(self, spec: Any):
        super().__init__()
        self.num_features = 8
        self.layer = torch.nn.Linear(int(np.prod(spec.observation_shape)), 8)

    def forward(self, picture: Tensor) -> Tensor:
        return torch.tanh(self.layer(picture.flatten(1) / 255))
