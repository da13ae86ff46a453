"""The base class of all algorithms, the settings that they share, and the helpers of their losses."""

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
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.bf16_weights import keep_copies
from accel_rl.rollout import Rollout
from accel_rl.updates import Update

Stats = dict[str, Tensor]
"""What to log of one or several updates: 0-d, or [U] with an entry for each update."""

MakeUpdate = Callable[[nn.Module], Update]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class AlgoSettings:
    """What every algorithm has; subclass it to add settings, each becomes a flag."""

    discount: float = basic_setting(0.99, "discount of future rewards, per step", least=0, most=1)
    learning_rate: float = basic_setting(7e-4, "step size of the optimizer", above=0, most=1e6)
    learning_rate_schedule: str = schedule_setting("constant", "schedule of the learning rate", basic=True)
    optimizer: str = setting("rmsprop", "optimizer: rmsprop, adam, radam, momentum_sgd, sgd or torch.<class name>")
    optimizer_options: dict = setting({}, "hyperparameters of the optimizer, as in {decay: 0.9, epsilon: 1e-6}")  # type: ignore[type-arg]
    clip_grad_norm: float | None = basic_setting(0.5, "largest norm of the whole gradient; null: not clipped", above=0)


@dataclass(frozen=True)
class CoreSettings:
    """What algorithms with a recurrent core have besides; derive settings from it and from AlgoSettings."""

    core: str = basic_setting("none", "recurrent core after the network", choices=("none", "lstm", "gru"))
    core_size: int = setting(256, "units of the recurrent core", least=1)
    previous_inputs: bool = setting(False, "the recurrent core also sees the last action and the last reward")

    def check_core(self) -> None:
        """Raises UsageError for inputs of a core that there is not."""
        if self.previous_inputs and self.core == "none":
            raise UsageError("previous_inputs are inputs of a recurrent core; use core=lstm or core=gru with them")


class RunInfo(NamedTuple):
    """What `Algo.validate` is told of the run.

    steps: agent steps of the whole run. num_envs: environments of all learners, also of those that do not update
    together. devices: of the learners on this machine; those on GPUs
    while the algorithm is on the CPU are for other processes: leave their memory alone."""

    steps: int
    num_envs: int
    devices: tuple[str, ...] = ()

    def leaves_gpus_alone(self, device: torch.device) -> bool:
        """Tells whether an algorithm on this device, a CPU, is there to check settings for learners on GPUs."""
        return device.type == "cpu" and any(each != "cpu" for each in self.devices)


class RunningStatistics(Protocol):
    """Running moments that acting and learning depend on, such as those of observations and of returns."""

    def update(self, rollout: Rollout, update: Update) -> None:
        """Takes the rollout into the moments, after learning from it."""

    def normalize(self, rollout: Rollout) -> Rollout:
        """Returns the rollout with its rewards as they are to be learned from."""

    def shared_buffers(self) -> dict[str, Tensor]:
        """Returns the moments' tensors by name, float64, which are the same for all learners."""


class Algo(ABC):
    """A method: how it acts (`policy`) and how it learns (`learn`, `on_step`).

    A subclass overrides `learn` and whichever of the eight other methods below it needs.

    spec: what the environments show and take. settings: an instance of `Settings`. schedule_steps: agent steps over
    which schedules run. num_envs: of all learners that update together; horizon: of a rollout. network: makes the
    trunk in place of the default one. local_envs: this learner's part of num_envs (all by default), the columns of its
    rollouts.
    """

    Settings: ClassVar[type[AlgoSettings]] = AlgoSettings
    defaults: ClassVar[dict[str, Any]] = {}
    """For a class without a preset: settings of the run as a preset's YAML has them, some under pixels or vectors, and
    some of these under box."""

    window_steps: int = 0
    """How many steps back `on_step` looks; 0: it does not look at the rollout that is being sampled."""
    accepts_segments: ClassVar[bool] = False
    """Whether it can learn from rollouts that are merged from segments (`SamplerKind.merges_rollouts`)."""
    learns_from_segments: bool = False
    """Whether its rollouts are such; the run sets it, before `setup`."""
    needs_terminal_frames: bool = False
    """Whether rollouts hold the true last frames of terminated episodes (`Rollout.terminal_frames`)."""
    statistics: RunningStatistics | None = None
    inherited: frozenset[str] = frozenset()
    """The names of the shared buffers of `statistics` that a trained policy has given (init_from); the run sets it."""
    auxiliary: Any = None
    """Auxiliary tasks: the run gives each rollout to their `store`, and what this returns to `learn`."""
    replay: Any = None
    """What the algorithm learns from, if that is a replay; made by `setup`."""
    saves_replay: bool = False
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

    # ---- what a subclass overrides ----

    def build_policy(self, network: Network | None) -> Any:
        """Returns what acts (rollout.Policy), a module that holds all parameters that are learned."""
        return ActorCritic(self.spec, network)

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for settings that do not fit each other or this machine, before anything is written."""

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        """Makes what only learning needs (replay, target networks), once the policy is on its device.

        seed: this learner's; what is drawn here may differ between learners. make_update: makes the Update of a second
        network, by the run's settings."""

    def before_rollout(self, step: int) -> None:
        """Sets what acting depends on besides parameters, such as epsilon. step: agent steps of the run so far."""

    def envs_to_update(self, t: int) -> slice | None:
        """Returns the environments whose last `window_steps` steps before step t of the rollout `on_step` learns from;
        None: there is no update at this step. Asked only if window_steps is positive."""
        return None

    def on_step(self, t: int, recent: Rollout | None, update: Update) -> Stats:
        """Learns while sampling; returns what `learn` does.

        With window_steps it is called for each t at which `envs_to_update` names environments, before these choose
        their actions of step t; recent holds their last window_steps steps. Without, it is called at every t, while the
        environments take step t, and recent is None."""
        return {}

    @abstractmethod
    def learn(self, rollout: Rollout, update: Update) -> Stats:
        """Learns from a complete rollout, or stores it; changes parameters only through `update`.

        Returns what to log, in the order of computation; the first value that is not finite ends the run."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beyond the policy, the optimizer's state, the shared buffers and the replay.

        What belongs to single environments goes under "local": a run that is resumed with another number of learners
        leaves it out."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` returned, perhaps without "local"."""

    # ---- what it offers to subclasses ----

    @property
    def learns_on_step(self) -> bool:
        """Whether the subclass has an `on_step` of its own, and rollouts have steps between which to call it."""
        return type(self).on_step is not Algo.on_step and not self.learns_from_segments

    @property
    def needs_first_rollout(self) -> bool:
        """Whether its statistics have yet to be made of a run's first rollout, before anything can be learned."""
        return self.statistics is not None and not self.statistics.shared_buffers().keys() <= self.inherited

    @property
    def samples_per_update(self) -> int:
        """How many samples one update of this learner learns from, about: how many threads that is worth follows."""
        return self.local_envs * self.horizon

    @property
    def device(self) -> torch.device:
        """Where the policy is."""
        return next(iter(self.policy.parameters())).device  # type: ignore[no-any-return]

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate at this agent step of the whole run."""
        return self.scheduled("learning_rate", step)

    def scheduled(self, name: str, step: int) -> float:
        """Returns the setting `name` at this agent step of the whole run, by the schedule that belongs to it."""
        text = getattr(self.settings, f"{name.removesuffix('_weight')}_schedule")
        return schedule(text, getattr(self.settings, name), step, self.schedule_steps)


def stack_stats(stats: Sequence[Stats]) -> Stats:
    """Joins the statistics of several updates [U]; those that not every update has are stacked where they are."""
    names = {name: None for each in stats for name in each}
    if len(stats) == 1:
        return {name: stats[0][name].unsqueeze(0) for name in names}  # a view: nothing to launch on a GPU
    return {name: torch.stack([each[name] for each in stats if name in each]) for name in names}


def masked_sum(value: Tensor, valid: Tensor) -> Tensor:
    """Returns the sum over valid samples, 0-d, whatever the invalid ones hold."""
    return value.masked_fill(~valid, 0.0).sum()  # not a product: 0 x nan is nan


def frozen_copy(network: Module) -> Module:
    """Returns a copy that is not learned, such as a target network."""
    copy = deepcopy(network).requires_grad_(False)
    keep_copies(copy)
    return copy
