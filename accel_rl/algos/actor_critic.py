"""What the actor-critics share: settings of their network, running statistics, values at a rollout's end."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from accel_rl.algos.base import Algo, AlgoSettings
from accel_rl.config.fields import setting
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.normalize import ObservationNorm, ReturnScale
from accel_rl.rollout import RecurrentInputs, Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class ActorCriticSettings(AlgoSettings):
    separate_value: bool = setting(False, "policy and value share no layers")
    core: str = setting("none", "recurrent core after the network", choices=("none", "lstm", "gru"))
    core_size: int = setting(256, "units of the recurrent core", least=1)
    previous_inputs: bool = setting(False, "the recurrent core also sees the last action and the last reward")
    gaussian: str = setting(
        "diagonal",
        "Box actions: a deviation for each dimension, whatever the observation, or one for all that depends on it",
        choices=("diagonal", "spherical"),
    )
    normalize_observations: bool = setting(False, "observations to mean 0 and variance 1, by running statistics")
    normalize_returns: bool = setting(False, "rewards by the running deviation of discounted returns")


class ActorCriticAlgo(Algo):
    """Acts and learns with an ActorCritic. Raises UsageError for settings of its network that do not fit together."""

    Settings: ClassVar[type[AlgoSettings]] = ActorCriticSettings
    policy: ActorCritic

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        settings = self.settings
        self.return_scale = ReturnScale(self.local_envs, settings.discount) if settings.normalize_returns else None

    def build_policy(self, network: Network | None) -> ActorCritic:
        settings, spec = self.settings, self.spec
        if settings.previous_inputs and settings.core == "none":
            raise UsageError("previous_inputs are inputs of a recurrent core; use core=lstm or core=gru with them")
        if settings.gaussian == "spherical" and not isinstance(spec.action_space, gymnasium.spaces.Box):
            raise UsageError(f"gaussian=spherical is for Box actions, but they are {spec.action_space}; leave it away")
        return ActorCritic(
            spec,
            network,
            settings.separate_value,
            settings.core,
            settings.core_size,
            settings.previous_inputs,
            settings.gaussian,
            settings.normalize_observations,
        )

    def to(self, device: torch.device) -> None:
        super().to(device)
        if self.return_scale:
            self.return_scale.to(device)

    @property
    def needs_statistics(self) -> bool:
        return self.policy.norm is not None or self.return_scale is not None

    def observe(self, rollout: Rollout, update: Update) -> None:
        if not self.needs_statistics:
            return
        with update.exclusive(self.moments()):
            if isinstance(self.policy.norm, ObservationNorm):
                observation = rollout.observations(0, rollout.horizon).flatten(0, 1)
                self.policy.norm.update(observation, update.sum, rollout.valid.flatten())
            if self.return_scale is not None:
                is_first = rollout.reset[:-1]
                self.return_scale.update(rollout.reward, rollout.done, rollout.valid, update.sum, is_first)

    def moments(self) -> dict[str, Tensor]:
        kept = {"observation": self.policy.norm, "return": self.return_scale}
        return {
            f"{name}.{key}": value
            for name, module in kept.items()
            if module is not None
            for key, value in module.moments.named_buffers()
        }

    def scaled(self, rollout: Rollout) -> Rollout:
        return replace(rollout, reward=self.return_scale.scale(rollout.reward)) if self.return_scale else rollout

    def state_dict(self) -> dict[str, Any]:
        return {"return_scale": self.return_scale.state_dict()} if self.return_scale else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.return_scale:
            self.return_scale.load_state_dict(state["return_scale"])

    def adopt(self, state: dict[str, Any]) -> None:
        if self.return_scale:
            self.return_scale.load_state_dict(state["return_scale"] | {"running": self.return_scale.running})


@torch.no_grad()
def bootstrap(policy: ActorCritic, rollout: Rollout, discount: float) -> tuple[Tensor, Tensor]:
    """The values of what comes after the rollout, in one pass of the network.

    Returns reward [T, B], to which the discounted value of each truncated episode's true last observation has been
    added, and the value [B] of the observation after step T - 1.
    """
    T, recurrent_inputs = rollout.horizon, rollout.recurrent_inputs
    last, after = (
        rollout.observations(T, T + 1)[0],
        recurrent_inputs and RecurrentInputs(*(rows[T] for rows in recurrent_inputs)),
    )
    if len(rollout.final_step) == 0:
        return rollout.reward, policy.step(last, after)[1]
    if recurrent_inputs and after:
        finals = RecurrentInputs(*(rows[rollout.final_step + 1, rollout.final_env] for rows in recurrent_inputs))
        finals = finals._replace(is_first=torch.zeros_like(finals.is_first))  # its row belongs to the next game already
        after = RecurrentInputs(*(torch.cat(pair) for pair in zip(after, finals, strict=True)))
    value = policy.step(torch.cat([last, rollout.final_observation]), after)[1]
    reward = rollout.reward.clone()
    reward[rollout.final_step, rollout.final_env] += discount * value[rollout.num_envs :]
    return reward, value[: rollout.num_envs]


def whole_batch(rollout: Rollout, **targets: Tensor) -> dict[str, Tensor]:
    """A rollout with its targets [T, B] for `update.minimize`, as samples [T x B, ...]; of a recurrent policy as
    sequences [T, B, ...], with their recurrent inputs."""
    T = rollout.horizon
    batch = {"observation": rollout.observations(0, T), "action": rollout.action, "valid": rollout.valid, **targets}
    recurrent_inputs = rollout.recurrent_inputs_of(0, T)
    if recurrent_inputs is None:
        return {name: value.flatten(0, 1) for name, value in batch.items()}
    return batch | recurrent_inputs._asdict()


def split_recurrent_inputs(batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A batch's fields of recurrent inputs (none without a core), and all others."""
    recurrent_inputs = {name: value for name, value in batch.items() if name in RecurrentInputs._fields}
    return recurrent_inputs, {name: value for name, value in batch.items() if name not in recurrent_inputs}
