"""The base class of all algorithms, and the settings that they share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from accel_rl.algos.schedules import schedule, schedule_setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.samplers.rollout import Rollout
from accel_rl.settings import setting
from accel_rl.updates import Update

REFERENCE_BATCH = 80  # samples: 16 environments x 5 steps, to which the paper's learning rate belongs


@dataclass(frozen=True)
class AlgoSettings:
    """What every algorithm has; subclass it to add settings, each becomes a flag."""

    discount: float = setting(0.99, "discount of future rewards, per step", least=0, most=1)
    learning_rate: float = setting(7e-4, "step size of the update rule", above=0)
    learning_rate_schedule: str = schedule_setting("constant", "course of the learning rate")
    learning_rate_scaling: str = setting(
        "none", "sqrt: times the root of (envs x horizon / 80) (Stooke & Abbeel 5.3)", choices=("none", "sqrt")
    )
    optimizer: str = setting("rmsprop", "update rule: rmsprop, adam, momentum_sgd, sgd or torch.<class name>")
    optimizer_options: dict = setting({}, "hyperparameters of the update rule, as in {decay: 0.9, epsilon: 1e-6}")  # type: ignore[type-arg]
    separate_value: bool = setting(False, "policy and value share no layers")
    clip_grad_norm: float | None = setting(0.5, "largest norm of the whole gradient; null: not clipped", above=0)


class Algo(ABC):
    """A method: how it acts (`policy`) and how it learns from a rollout (`learn`).

    spec: what the environments show and take. schedule_steps: agent steps over which schedules run. batch_size:
    samples of one rollout over all learners. network: makes the trunk in place of the default one.
    """

    Settings: ClassVar[type[AlgoSettings]] = AlgoSettings
    defaults: ClassVar[dict[str, Any]] = {}
    """Of a class without a preset: settings of the run, as a preset's YAML has them, some under pixels or vectors."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: Any,
        schedule_steps: int,
        batch_size: int,
        network: Network | None = None,
    ):
        self.spec, self.settings, self.schedule_steps = spec, settings, schedule_steps
        scale = (batch_size / REFERENCE_BATCH) ** 0.5 if settings.learning_rate_scaling == "sqrt" else 1.0
        self.base_learning_rate = settings.learning_rate * scale
        self.policy = self.build_policy(network)

    def build_policy(self, network: Network | None) -> ActorCritic:
        """What acts, and holds all parameters that are learned."""
        return ActorCritic(self.spec, network, self.settings.separate_value)

    @abstractmethod
    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        """Changes the policy's parameters by `update.step`; returns what to log, in the order of computation.

        Each is a tensor, 0-d or [U] with an entry for each update; the first that is not finite ends the run."""

    def learning_rate(self, step: int) -> float:
        """At that many agent steps of the whole run."""
        return schedule(self.settings.learning_rate_schedule, self.base_learning_rate, step, self.schedule_steps)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beyond the parameters and the update rule's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@torch.no_grad()
def bootstrap(policy: ActorCritic, rollout: Rollout, discount: float) -> tuple[Tensor, Tensor]:
    """The values of what comes after the rollout, in one pass of the network.

    Returns reward [T, B], to which the discounted value of each truncated episode's true last observation has been
    added, and the value [B] of the observation after step T - 1.
    """
    last = rollout.observations(rollout.horizon, rollout.horizon + 1)[0]
    num_truncated = len(rollout.final_step)
    if num_truncated == 0:
        return rollout.reward, policy(last)[1]
    value = policy(torch.cat([last, rollout.final_observation]))[1]
    reward = rollout.reward.clone()
    reward[rollout.final_step, rollout.final_env] += discount * value[-num_truncated:]
    return reward, value[: rollout.num_envs]
