"""Policies and comparisons that several sampler tests use."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs import EnvConfig
from accel_rl.envs.batch_simulator import BatchConfig, prepare
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import PolicyStep, RecurrentInputs, TerminalFrames
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.gpu_action_server import GpuActionServer
from tests.helpers.forks import probe_spec

TOYS = "tests.helpers.toy_envs"


class Echo:
    """Acts by the observation and the noise together, and records both: a wrong row or a wrong noise shows at once."""

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
    """Acts by the observation alone: the number of environments that noise is drawn for does not show."""

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        return super().act(observation, None, recurrent_inputs)


def spec_of(env: EnvConfig) -> EnvSpec:
    """`probe_spec`, once for each kind of environment."""
    return _SPECS.get(repr(env)) or _SPECS.setdefault(repr(env), probe_spec(env))


_SPECS: dict[str, EnvSpec] = {}


def make(sampler_class: Any, env: EnvConfig, config: SamplerConfig, policy: Any = None, **batch: Any) -> Any:
    spec, options = spec_of(env), BatchConfig(env, **{"seed": 3, **batch})
    policy = policy or Echo(int(spec.action_space.n))  # type: ignore[attr-defined]
    prepare(options)  # here, once: the processes that start simulators are forked from this one
    return sampler_class(spec, options, policy, config)


KINDS = ("serial", "alternating", "device")


def make_kind(kind: str, env: EnvConfig, config: SamplerConfig, policy: Any = None, **batch: Any) -> Any:
    """A sampler: serial | alternating | device, an alternating one whose server works as on a GPU, on the CPU."""
    sampler = make(SerialSampler if kind == "serial" else AlternatingSampler, env, config, policy, **batch)
    if kind == "device":
        server, arrays = sampler._server, sampler.pool.train.arrays
        sampler._server = GpuActionServer(
            sampler.spec,
            arrays,
            server.generator,
            torch.device("cpu"),
            config.window,
            terminal_frames=config.terminal_frames,
        )
    return sampler


FIELDS = [
    "observation_rows",
    "age",
    "action",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "reset",
    "final_step",
    "final_env",
    "final_observation",
]


def assert_equal(first: Any, second: Any, what: str = "") -> None:
    """Two rollouts, bit for bit."""
    for name in FIELDS:
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


def copy(rollout: Any) -> Any:
    """A rollout that outlives the next `collect`."""

    def clone(value: Any) -> Any:
        if isinstance(value, Tensor | np.ndarray):
            return value.clone() if isinstance(value, Tensor) else value.copy()
        if isinstance(value, RecurrentInputs | TerminalFrames):
            return type(value)(*map(clone, value))
        return {name: clone(v) for name, v in value.items()} if isinstance(value, dict) else value

    return replace(rollout, **{f.name: clone(getattr(rollout, f.name)) for f in fields(rollout)})


def columns_of(rollout: Any, envs: slice) -> Any:
    """The rollout of some of the environments, by themselves."""
    per_env = [name for name in FIELDS if not name.startswith("final_")]
    kept = (rollout.final_env >= envs.start) & (rollout.final_env < envs.stop)
    games = [game._replace(env=game.env - envs.start) for game in rollout.games if envs.start <= game.env < envs.stop]
    return replace(
        rollout,
        **{name: getattr(rollout, name)[:, envs] for name in per_env},
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
