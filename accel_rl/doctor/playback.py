"""Records rollouts on the CPU, and has algorithms learn from them on any device."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.algos import Algo
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import RecurrentInputs, Rollout, TerminalFrames
from accel_rl.samplers.base import EnvsToUpdate, OnStep
from accel_rl.training.build import build_algo, build_training_sampler, build_update
from accel_rl.training.iteration import Iteration
from accel_rl.training.resolve import Config, resolve
from accel_rl.updates import CentralStore, Update

Settings = dict[str, Any]

COMMON: Settings = {
    "envs": 4,
    "horizon": 5,
    "seed": 5,
    "sampler": "serial",
    "decorrelation_steps": 3,
    "sampling_threads": 1,
    "learning_threads": 1,
    "tensorboard": False,
    "eval_interval_steps": 0,
    "log_interval_steps": 20,
    "steps": 400,
}
# Short episodes, so that their ends are compared, too.
PONG: Settings = {**COMMON, "env": "pong", "frame_shape": (42, 42), "max_episode_steps": 7, "noop_max": 3}
CARTPOLE: Settings = {**COMMON, "env": "CartPole-v1", "env_options": {"max_episode_steps": 8}}
NUM_ROLLOUTS = 7  # graphs are captured at the third call with one shape

RMSPROP: Settings = {"optimizer": "rmsprop", "optimizer_options": {"epsilon": 1e-5}}  # smaller ones magnify rounding
A2C: Settings = {"algo": "a2c", **RMSPROP}
PPO: Settings = {"algo": "ppo", "epochs": 2, "minibatches": 2, "target_kl": None}
VTRACE: Settings = {"algo": "vtrace", "batches": 2, "batch_steps": 7, "steps_per_update": 2, **RMSPROP}
REPLAY: Settings = {"warmup_steps": 40, "batch_size": 8, "replay_size": 100, "training_intensity": 2, "n_step": 3}
REPLAY |= {"target_interval_steps": 60, "epsilon_steps": 200, "new_priority": None}
LSTM: Settings = {"core": "lstm", "core_size": 8, "previous_inputs": True}
AUXILIARY: Settings = {"auxiliary": "pixel_control,value_replay,reward_prediction", "auxiliary_replay_steps": 12}
GRU: Settings = {"core": "gru", "core_size": 8}


def make_config(settings: Settings, device: str | torch.device = "cpu", *, graphs: bool = True) -> Config:
    """Returns the resolved settings of a run on a device."""
    env = (settings["env"], tuple(settings.get("frame_shape", ())))
    given = {**settings, "device": str(device), "cuda_graphs": graphs}
    config = resolve(given, spec=_specs.get(env))
    _specs[env] = config.spec
    return config


_specs: dict[Any, EnvSpec] = {}  # finding one out takes a process, and so a second


def build_parts(config: Config, store: CentralStore | None = None) -> tuple[Algo, Update]:
    """Returns a run's algorithm, ready to learn, and what changes its parameters."""
    algo, make_update = build_algo(config), partial(build_update, config)
    update = make_update(algo.policy, store=store)
    algo.setup(config.run.seed, make_update)
    return algo, update


class Recorded(NamedTuple):
    """A rollout, and what `recent` gave at each step at which an update was due."""

    rollout: Rollout
    recent: dict[int, Rollout]


def record(settings: Settings, num_rollouts: int = NUM_ROLLOUTS) -> tuple[Recorded, ...]:
    """Returns rollouts of a run's initial policy, on the CPU."""
    return _record(_Frozen(settings), num_rollouts)


@cache
def _record(settings: "_Frozen", num_rollouts: int) -> tuple[Recorded, ...]:
    config = make_config(settings.values)
    algo, _ = build_parts(config)
    sampler = build_training_sampler(config, algo)
    found, step = [], 0
    for _ in range(num_rollouts):
        recent: dict[int, Rollout] = {}

        def on_step(t: int, recent: dict[int, Rollout] = recent) -> None:
            if (envs := algo.envs_to_update(t)) is not None:
                recent[t] = to_device(sampler.recent(t, algo.window_steps, envs), "cpu")

        algo.before_rollout(step)
        hook = (on_step, 1, step, algo.envs_to_update) if algo.window_steps else (None, 1, step)
        found.append(Recorded(to_device(sampler.collect(*hook), "cpu"), recent))
        step += found[-1].rollout.reward.numel()
    sampler.close()
    return tuple(found)


class _Frozen:
    """Settings as a key: equal if they are written alike."""

    def __init__(self, values: Settings):
        self.values = values

    def __eq__(self, other: object) -> bool:
        return repr(self.values) == repr(getattr(other, "values", None))

    def __hash__(self) -> int:
        return hash(repr(self.values))


class Playback:
    """Stands in for a sampler: gives recorded rollouts again, on a device."""

    bytes_moved = num_restarts = 0

    def __init__(self, recorded: Sequence[Recorded], device: torch.device):
        self.device, self.seconds = device, dict[str, float]()
        self._coming = list(recorded)
        self._current = self._coming[0]

    def collect(
        self,
        on_step: OnStep | None = None,
        every: int = 1,
        first_step: int | None = None,
        envs_to_update: EnvsToUpdate | None = None,
    ) -> Rollout:
        self._current = self._coming.pop(0)
        for t in range(0, self._current.rollout.horizon, every):
            if on_step:
                on_step(t)
        return to_device(self._current.rollout, self.device)

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        return to_device(self._current.recent[t], self.device)


def learn(
    settings: Settings,
    device: str | torch.device,
    *,
    graphs: bool = True,
    store: CentralStore | None = None,
    num_rollouts: int = NUM_ROLLOUTS,
) -> Tensor:
    """Learns from recorded rollouts; returns by how much that has changed the parameters [P], on the CPU."""
    config = make_config(settings, device, graphs=graphs)
    algo, update = build_parts(config, store)
    before = update.parameters.values.detach().cpu().clone()
    seen = {name: value for name, value in settings.items() if name not in ("bf16", "update")}  # the same for all
    iteration = Iteration(Playback(record(seen, num_rollouts), algo.device), algo, update, config.plan)  # type: ignore[arg-type]
    for index in range(num_rollouts):
        steps = index * config.run.envs * config.run.horizon
        iteration.collect_and_learn(steps, learns=index > 0 or algo.statistics is None)
    after = update.parameters.values.detach().cpu().clone()
    update.close()
    return after - before


def to_device(rollout: Rollout, device: str | torch.device) -> Rollout:
    """Returns a copy of a rollout on a device."""

    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, copy=True)
        if isinstance(value, RecurrentInputs | TerminalFrames):
            return type(value)(*map(copy, value))
        return {name: copy(each) for name, each in value.items()} if isinstance(value, dict) else value

    return replace(rollout, **{each.name: copy(getattr(rollout, each.name)) for each in fields(rollout)})
