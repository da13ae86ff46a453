"""Defines the base class of all algorithms, their shared settings, and helpers for their losses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from accel_rl.config.fields import basic_setting, setting
from accel_rl.config.schedules import schedule, schedule_setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.bf16_weights import keep_copies
from accel_rl.rollout import Rollout
from accel_rl.updates import Update
from accel_rl.updates.optimizers import OPTIMIZERS

Stats = dict[str, Tensor]
"""Statistics to log: 0-d for one update, or [U] with an entry for each of several updates."""

MakeUpdate = Callable[[nn.Module], Update]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class AlgoSettings:
    """The settings of every algorithm. Subclass it to add settings; each becomes a flag."""

    discount: float = basic_setting(0.99, "discount of future rewards, per step", least=0, most=1)
    learning_rate: float = basic_setting(7e-4, "step size of the optimizer", above=0, most=1e6)
    learning_rate_schedule: str = schedule_setting("constant", "schedule of the learning rate", basic=True)
    optimizer: str = setting("rmsprop", f"optimizer: {', '.join(OPTIMIZERS)} or torch.<class name>")
    optimizer_options: dict = setting({}, "hyperparameters of the optimizer, as in {decay: 0.9, epsilon: 1e-6}")  # type: ignore[type-arg]
    clip_grad_norm: float | None = basic_setting(0.5, "largest norm of the whole gradient; null: not clipped", above=0)


@dataclass(frozen=True)
class CoreSettings:
    """The settings of a recurrent core. Derive an algorithm's settings from it and from AlgoSettings."""

    core: str = basic_setting("none", "recurrent core after the network", choices=("none", "lstm", "gru"))
    core_size: int = setting(256, "units of the recurrent core", least=1, only_with="core")
    previous_inputs: bool = setting(
        False, "the recurrent core also sees the last action and the last reward", only_with="core"
    )


class RunInfo(NamedTuple):
    """The run, as `Algo.validate` sees it.

    steps: agent steps of the whole run. num_envs: environments of all learners, including learners that do not update
    together. devices: the devices of the learners on this machine. If the algorithm is on the CPU, GPUs among them
    belong to other processes, so do not use their memory."""

    steps: int
    num_envs: int
    devices: tuple[str, ...] = ()


class Window(NamedTuple):
    """The past steps that `Algo.on_step` learns from.

    steps: how many steps back it looks. envs_to_update(t): the environments whose last steps it learns from before step
    t of a rollout, or None if there is no update. It is called ahead of time and more than once."""

    steps: int
    envs_to_update: Callable[[int], slice | None]


class RunningStatistics(Protocol):
    """Running moments that acting and learning depend on, such as those of observations and returns."""

    def update(self, rollout: Rollout, update: Update) -> None:
        """Adds the rollout to the moments, after learning from it."""

    def normalize(self, rollout: Rollout) -> Rollout:
        """Returns the rollout with the rewards to learn from."""

    def shared_buffers(self) -> dict[str, Tensor]:
        """Returns the moments by name, float64. All learners have the same ones."""


class Algo(ABC):
    """An algorithm: how it acts (`policy`) and how it learns (`learn`, `on_step`).

    A subclass overrides `learn`, and any of the other seven methods in the first section that it needs.

    spec: the environments' observations and actions. settings: an instance of `Settings`. schedule_steps: agent steps
    over which schedules run. num_envs: environments of all learners that update together. horizon: steps of a rollout.
    network: makes the trunk, instead of the default one. local_envs: this learner's share of num_envs (default: all),
    the columns of its rollouts. learns_from_segments: rollouts are merged from segments of different lengths.
    """

    Settings: ClassVar[type[AlgoSettings]] = AlgoSettings
    defaults: ClassVar[dict[str, Any]] = {}
    """The run settings of a class without a preset, laid out like a preset's YAML. Settings may be nested under pixels
    or vectors, and within these under box."""
    accepts_segments: ClassVar[bool] = False
    """True if it can learn from rollouts that are merged from segments."""
    window: Window | None = None
    """The steps of the current rollout that `on_step` learns from; None: it does not look at the rollout."""
    statistics: RunningStatistics | None = None
    """Running moments. The run updates them, and uses them to normalize rollouts."""
    replay: Any = None
    """A replay, made by `setup`. Checkpoints include it unless its attribute in_checkpoints is False."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: Any,
        schedule_steps: int,
        num_envs: int,
        horizon: int,
        network: Network | None = None,
        local_envs: int | None = None,
        learns_from_segments: bool = False,
    ):
        self.spec, self.settings, self.schedule_steps = spec, settings, schedule_steps
        self.num_envs, self.horizon = num_envs, horizon
        self.local_envs = num_envs if local_envs is None else local_envs
        self.learns_from_segments = learns_from_segments
        self.policy: Any = self.build_policy(network)

    # ---- what a subclass overrides ----

    def build_policy(self, network: Network | None) -> Any:
        """Returns the policy (rollout.Policy), a module that holds all learned parameters."""
        return ActorCritic(self.spec, network)

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for settings that do not fit each other or this machine, before anything is written."""

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        """Makes what only learning needs (replay, target networks), once the policy is on its device.

        seed: this learner's; random draws here may differ between learners. make_update: makes the Update of a second
        network, from the run's settings."""

    def before_rollout(self, step: int) -> None:
        """Sets what acting depends on apart from parameters, such as epsilon. step: agent steps of the run so far."""

    def on_step(self, t: int, recent: Rollout | None, update: Update) -> Stats:
        """Learns while sampling; returns statistics like `learn`.

        With a window, it is called for each t at which `window.envs_to_update` names environments, before they choose
        their actions for step t; recent holds their last steps. Without a window, it is called at every t, while the
        environments take step t, and recent is None."""
        return {}

    @abstractmethod
    def learn(self, rollout: Rollout, update: Update) -> Stats:
        """Learns from a complete rollout, or stores it; changes parameters only through `update`.

        Returns statistics to log, in the order of computation; the first value that is not finite ends the run."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beyond the policy, the optimizer state, the shared buffers and the replay.

        The state of individual environments goes under "local". A run that is resumed with a different number of
        learners drops it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned, perhaps without "local"."""

    # ---- what the base class provides ----

    @property
    def learns_on_step(self) -> bool:
        """True if `on_step` must be called: the subclass overrides it, and rollouts are not merged from segments."""
        return type(self).on_step is not Algo.on_step and not self.learns_from_segments

    @property
    def samples_per_update(self) -> int:
        """The approximate number of samples in one of this learner's updates; it determines the number of threads."""
        return self.local_envs * self.horizon

    @property
    def device(self) -> torch.device:
        return next(iter(self.policy.parameters())).device  # type: ignore[no-any-return]

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate at this agent step of the whole run."""
        return self.scheduled("learning_rate", step)

    def scheduled(self, name: str, step: int) -> float:
        """Returns the setting `name` at this agent step of the whole run, by its schedule."""
        text = getattr(self.settings, f"{name.removesuffix('_weight')}_schedule")
        return schedule(text, getattr(self.settings, name), step, self.schedule_steps)


def stack_stats(stats: Sequence[Stats]) -> Stats:
    """Stacks the statistics of several updates into [U]; a statistic that some updates lack has fewer entries."""
    names = {name: None for each in stats for name in each}
    if len(stats) == 1:
        return {name: stats[0][name].unsqueeze(0) for name in names}  # a view: nothing to launch on a GPU
    return {name: torch.stack([each[name] for each in stats if name in each]) for name in names}


def masked_sum(value: Tensor, valid: Tensor) -> Tensor:
    """Returns the sum over valid samples, 0-d; the others may hold anything."""
    return value.masked_fill(~valid, 0.0).sum()  # not a product: 0 x nan is nan


def sum_terms(terms: Stats, valid: Tensor) -> tuple[Tensor, Stats]:
    """Returns the sum of terms["loss"] over valid samples, and the sums of all terms, detached.

    terms: for each sample [...]; those of invalid samples may be anything."""
    with torch.no_grad():
        sums = torch.stack([*terms.values()]).masked_fill(~valid, 0.0).flatten(1).sum(1)
    return masked_sum(terms["loss"], valid), dict(zip(terms, sums.unbind(), strict=True))


def frozen_copy(network: Module) -> Module:
    """Returns a copy without gradients, such as a target network."""
    copy = deepcopy(network).requires_grad_(False)
    keep_copies(copy)
    return copy
