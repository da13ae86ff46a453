"""The base class of all algorithms, and the settings that they share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from accel_rl.algos.schedules import schedule, schedule_setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.normalize import ObservationNorm, ReturnScale
from accel_rl.samplers.rollout import Memory, Rollout
from accel_rl.settings import setting
from accel_rl.updates import Update


@dataclass(frozen=True)
class AlgoSettings:
    """What every algorithm has; subclass it to add settings, each becomes a flag."""

    discount: float = setting(0.99, "discount of future rewards, per step", least=0, most=1)
    learning_rate: float = setting(7e-4, "step size of the update rule", above=0)
    learning_rate_schedule: str = schedule_setting("constant", "course of the learning rate")
    optimizer: str = setting("rmsprop", "update rule: rmsprop, adam, momentum_sgd, sgd or torch.<class name>")
    optimizer_options: dict = setting({}, "hyperparameters of the update rule, as in {decay: 0.9, epsilon: 1e-6}")  # type: ignore[type-arg]
    clip_grad_norm: float | None = setting(0.5, "largest norm of the whole gradient; null: not clipped", above=0)

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


class Algo(ABC):
    """A method: how it acts (`policy`) and how it learns from a rollout (`learn`).

    spec: what the environments show and take. schedule_steps: agent steps over which schedules run. num_envs, horizon:
    of a rollout, over all learners. network: makes the trunk in place of the default one.
    """

    Settings: ClassVar[type[AlgoSettings]] = AlgoSettings
    defaults: ClassVar[dict[str, Any]] = {}
    """Of a class without a preset: settings of the run, as a preset's YAML has them, some under pixels or vectors."""
    takes_cores: ClassVar[bool] = False
    """Whether `learn` passes a rollout's memory on, which a recurrent core needs."""
    window: int = 0
    """0: learns from each rollout once it is complete. Else while sampling, from that many newest steps (see `due`)."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: Any,
        schedule_steps: int,
        num_envs: int,
        horizon: int,
        network: Network | None = None,
    ):
        self.spec, self.settings, self.schedule_steps = spec, settings, schedule_steps
        self.num_envs, self.horizon = num_envs, horizon
        if settings.core != "none" and not self.takes_cores:
            raise UsageError(f"core={settings.core}: {type(self).__name__} does not learn sequences; use core=none")
        if settings.previous_inputs and settings.core == "none":
            raise UsageError("previous_inputs are inputs of a recurrent core; use core=lstm or core=gru with them")
        if settings.gaussian == "spherical" and not isinstance(spec.action_space, gymnasium.spaces.Box):
            raise UsageError(f"gaussian=spherical is for Box actions, but they are {spec.action_space}; leave it away")
        self.policy = self.build_policy(network)
        self.return_scale = ReturnScale(num_envs, settings.discount) if settings.normalize_returns else None

    def build_policy(self, network: Network | None) -> ActorCritic:
        """What acts, and holds all parameters that are learned."""
        settings = self.settings
        return ActorCritic(
            self.spec,
            network,
            settings.separate_value,
            settings.core,
            settings.core_size,
            settings.previous_inputs,
            settings.gaussian,
            settings.normalize_observations,
        )

    @abstractmethod
    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        """Changes the policy's parameters by `update`; returns what to log, in the order of computation.

        Each is a tensor, 0-d or [U] with an entry for each update; the first that is not finite ends the run."""

    def due(self, step: int) -> slice | None:
        """With a window: the environments whose last `window` steps are to be learned from, now that each has done
        `step` steps; None: nothing yet."""
        raise NotImplementedError

    def learning_rate(self, step: int) -> float:
        """At that many agent steps of the whole run."""
        return self.scheduled(self.settings.learning_rate_schedule, self.settings.learning_rate, step)

    def scheduled(self, text: str, initial: float, step: int) -> float:
        """A setting with a schedule, at that many agent steps of the whole run."""
        return schedule(text, initial, step, self.schedule_steps)

    # ---- running statistics ----

    @property
    def needs_statistics(self) -> bool:
        """Whether the first rollout is only observed, since nothing can be learned before."""
        return self._norm is not None or self.return_scale is not None

    @property
    def _norm(self) -> ObservationNorm | None:
        return getattr(self.policy, "norm", None)  # a policy of the user's own may have none

    def observe(self, rollout: Rollout, update: Update) -> None:
        """After learning: takes the rollout into the running statistics, so that acting and learning see the same."""
        if self._norm is not None:
            observation = rollout.observations(0, rollout.horizon).flatten(0, 1)
            self._norm.update(observation, update.sum, rollout.valid.flatten())
        if self.return_scale is not None:
            self.return_scale.update(rollout.reward, rollout.done, rollout.valid, update.sum, fresh=rollout.reset[:-1])

    def scaled(self, rollout: Rollout) -> Rollout:
        """The rollout with its rewards as they are learned from."""
        return replace(rollout, reward=self.return_scale.scale(rollout.reward)) if self.return_scale else rollout

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beyond the policy and the update rule's state."""
        return {"return_scale": self.return_scale.state_dict()} if self.return_scale else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.return_scale:
            self.return_scale.load_state_dict(state["return_scale"])


@torch.no_grad()
def bootstrap(policy: ActorCritic, rollout: Rollout, discount: float) -> tuple[Tensor, Tensor]:
    """The values of what comes after the rollout, in one pass of the network.

    Returns reward [T, B], to which the discounted value of each truncated episode's true last observation has been
    added, and the value [B] of the observation after step T - 1.
    """
    T, memory = rollout.horizon, rollout.memory
    last, after = rollout.observations(T, T + 1)[0], memory and Memory(*(rows[T] for rows in memory))
    if len(rollout.final_step) == 0:
        return rollout.reward, policy.step(last, after)[1]
    if memory and after:
        finals = Memory(*(rows[rollout.final_step + 1, rollout.final_env] for rows in memory))
        finals = finals._replace(fresh=torch.zeros_like(finals.fresh))  # its row belongs to the next game already
        after = Memory(*(torch.cat(pair) for pair in zip(after, finals, strict=True)))
    value = policy.step(torch.cat([last, rollout.final_observation]), after)[1]
    reward = rollout.reward.clone()
    reward[rollout.final_step, rollout.final_env] += discount * value[rollout.num_envs :]
    return reward, value[: rollout.num_envs]


def whole_batch(rollout: Rollout, **targets: Tensor) -> dict[str, Tensor]:
    """A rollout with its targets [T, B] for `update.minimize`, as samples [T x B, ...]; of a recurrent policy as
    sequences [T, B, ...], with their memory."""
    T = rollout.horizon
    batch = {"observation": rollout.observations(0, T), "action": rollout.action, "valid": rollout.valid, **targets}
    memory = rollout.memory_of(0, T)
    if memory is None:
        return {name: value.flatten(0, 1) for name, value in batch.items()}
    return batch | memory._asdict()


def split_memory(batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A batch's fields of memory (none without a core), and all others."""
    memory = {name: value for name, value in batch.items() if name in Memory._fields}
    return memory, {name: value for name, value in batch.items() if name not in memory}


def scalar(value: float, like: Tensor) -> Tensor:
    """A setting that changes, as a 0-d tensor on the device of `like`, without waiting for it."""
    return torch.full((), value, device=like.device)


def masked_sum(value: Tensor, valid: Tensor) -> Tensor:
    """The sum over valid samples, whatever the others hold."""
    return value.masked_fill(~valid, 0.0).sum()  # not a product: 0 x nan is nan
