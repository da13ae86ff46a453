"""The base class of all algorithms, and the settings that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from accel_rl.algos.schedules import schedule, schedule_setting
from accel_rl.config.fields import setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.replay import Replay
from accel_rl.rollout import Rollout
from accel_rl.updates import LocalUpdate, Update

MakeUpdate = Callable[[nn.Module], LocalUpdate]


@dataclass(frozen=True)
class AlgoSettings:
    """What every algorithm has; subclass it to add settings, each becomes a flag."""

    discount: float = setting(0.99, "discount of future rewards, per step", least=0, most=1)
    learning_rate: float = setting(7e-4, "step size of the update rule", above=0)
    learning_rate_schedule: str = schedule_setting("constant", "course of the learning rate")
    optimizer: str = setting("rmsprop", "update rule: rmsprop, adam, momentum_sgd, sgd or torch.<class name>")
    optimizer_options: dict = setting({}, "hyperparameters of the update rule, as in {decay: 0.9, epsilon: 1e-6}")  # type: ignore[type-arg]
    clip_grad_norm: float | None = setting(0.5, "largest norm of the whole gradient; null: not clipped", above=0)


class Algo(ABC):
    """A method: how it acts (`policy`) and how it learns from a rollout (`learn`).

    spec: what the environments show and take. schedule_steps: agent steps over which schedules run. num_envs: of all
    learners that update together; horizon: of a rollout. network: makes the trunk in place of the default one.
    local_envs: this learner's part of num_envs, all by default; its rollouts have so many.
    """

    Settings: ClassVar[type[AlgoSettings]] = AlgoSettings
    defaults: ClassVar[dict[str, Any]] = {}
    """Of a class without a preset: settings of the run, as a preset's YAML has them, some under pixels or vectors."""
    window: int = 0
    """0: learns from each rollout once it is complete. Else while sampling, from that many newest steps (see `due`)."""
    learns_meanwhile: ClassVar[bool] = False
    """Whether `learn_meanwhile` is to be called."""
    replay: Replay | None = None
    """What it learns from, if it learns from a replay; made by `start`."""
    keeps_replay: bool = False
    """Whether checkpoints hold the replay."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: Any,
        schedule_steps: int,
        num_envs: int,
        horizon: int,
        network: Network | None = None,
        local_envs: int | None = None,
    ):
        self.spec, self.settings, self.schedule_steps = spec, settings, schedule_steps
        self.num_envs, self.horizon = num_envs, horizon
        self.local_envs = num_envs if local_envs is None else local_envs
        self.policy: Any = self.build_policy(network)

    def build_policy(self, network: Network | None) -> Any:
        """What acts (see samplers/action_server.py), a module that holds all parameters that are learned."""
        return ActorCritic(self.spec, network)

    def to(self, device: torch.device) -> None:
        """Puts the policy, and whatever else decides what is learned, onto the learner's device."""
        self.policy.to(device)

    def check(self, steps: int, devices: tuple[str, ...]) -> None:
        """Once it is on its device, before anything of a run of so many steps is written: raises UsageError for what
        can't be had. devices: of all learners on this machine; none if their memory is not to be looked at."""

    def start(self, seed: int, make_update: MakeUpdate) -> None:
        """Before a run: makes what is only needed to learn. seed: this learner's; whatever it draws here may differ
        from other learners, what was drawn before may not. make_update: what changes the parameters of a network
        beside the policy, by the run's settings."""

    def prepare(self, step: int) -> None:
        """Before the rollout that begins at that agent step of the run: what acting depends on beside parameters."""

    @abstractmethod
    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        """Changes the policy's parameters by `update`; returns what to log, in the order of computation.

        Each is a tensor, 0-d or [U] with an entry for each update; the first that is not finite ends the run."""

    def learn_meanwhile(self, t: int, update: Update) -> dict[str, Tensor]:
        """While the environments take step t of a rollout: what can be learned without it. Returns as `learn`."""
        raise NotImplementedError

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
        return False

    def observe(self, rollout: Rollout, update: Update) -> None:
        """After learning: takes the rollout into the running statistics, so that acting and learning see the same."""

    def scaled(self, rollout: Rollout) -> Rollout:
        """The rollout with its rewards as they are learned from."""
        return rollout

    def moments(self) -> dict[str, Tensor]:
        """The running statistics' tensors, float64, that are to be the same for all learners."""
        return {}

    # ---- what is said, kept and shown ----

    def warnings(self) -> list[str]:
        """What has come up since it was last asked; may wait for a GPU."""
        return []

    def others(self) -> dict[str, Any]:
        """Policies that are evaluated beside the one that acts, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beyond the policy, the update rule's state and the replay."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def adopt(self, state: dict[str, Any]) -> None:
        """In place of load_state_dict, where the state is that of a learner with other environments (the run had
        another number of learners): takes over what does not belong to single environments."""
        self.load_state_dict(state)


def scalar(value: float, like: Tensor) -> Tensor:
    """A setting that changes, as a 0-d tensor on the device of `like`, without waiting for it."""
    return torch.full((), value, device=like.device)


def masked_sum(value: Tensor, valid: Tensor) -> Tensor:
    """The sum over valid samples, whatever the others hold."""
    return value.masked_fill(~valid, 0.0).sum()  # not a product: 0 x nan is nan
