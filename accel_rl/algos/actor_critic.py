"""What the actor-critics share: settings of their network, running statistics, auxiliary tasks, and their loss."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from accel_rl.algos.auxiliary import AuxiliarySettings, AuxiliaryTasks, add_heads
from accel_rl.algos.base import Algo, AlgoSettings, CoreSettings, MakeUpdate, RunInfo, Stats, masked_sum
from accel_rl.algos.batches import add_final_values
from accel_rl.algos.prepared_tasks import PreparedTasks
from accel_rl.algos.running_statistics import RunningMoments
from accel_rl.config.fields import basic_setting, setting
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.distributions import Distribution
from accel_rl.models.normalize import ReturnScale
from accel_rl.models.trunks import initialize_by_fan_in, initialize_orthogonally
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import LossPart, Update


@dataclass(frozen=True)
class ActorCriticSettings(CoreSettings, AlgoSettings):
    separate_value: bool = setting(False, "policy and value share no layers")
    gaussian: str = setting(
        "diagonal",
        "Box actions: a learned std for each dimension, the same for all observations (diagonal), or one variance for "
        "all dimensions that depends on the observation (spherical)",
        choices=("diagonal", "spherical"),
    )
    initialization: str = setting(
        "normalized",
        "first weights: normalized: weight vectors of norm 1 (0.01 of the policy's), Glorot-uniform convolutions, "
        "biases of 0; fan_in: weights and biases uniform within +-1/sqrt(inputs of a unit) (GA3C); orthogonal: "
        "orthogonal matrices times sqrt(2), 0.01 of the policy's, 1 of the value's, biases of 0",
        choices=("normalized", "fan_in", "orthogonal"),
    )
    normalize_observations: bool = basic_setting(
        False,
        "normalize observations to mean 0, variance 1 by running statistics; from pictures of bytes, subtract the "
        "background",
    )
    normalize_returns: bool = basic_setting(False, "divide rewards by the running std of discounted returns")


class ActorCriticAlgo(Algo):
    """Acts and learns with an ActorCritic. Raises UsageError for settings of its network that do not fit together.

    A subclass writes `update_from`, which calls `minimize`, and `loss`. If its settings are AuxiliarySettings, too, a
    `learn` of its own learns nothing while `is_filling`, and passes what `draw_auxiliary` returns to each
    `update.minimize`."""

    accepts_segments = True
    Settings: ClassVar[type[AlgoSettings]] = ActorCriticSettings
    policy: ActorCritic
    statistics: RunningMoments | None
    _envs = slice(None)  # those whose steps are learned from now

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        settings, norm = self.settings, self.policy.norm
        scale = ReturnScale(self.local_envs, settings.discount) if settings.normalize_returns else None
        self.statistics = RunningMoments(norm, scale) if norm or scale else None
        if isinstance(settings, AuxiliarySettings):
            self.needs_terminal_frames = any(task.needs_terminal_frames for task in settings.auxiliary_tasks.values())

    @cached_property
    def auxiliary(self) -> AuxiliaryTasks | None:
        """The auxiliary tasks, if there are any. Read it only once `learns_from_segments` is set: then the sampler
        draws."""
        settings = self.settings
        if not (isinstance(settings, AuxiliarySettings) and settings.auxiliary_tasks):
            return None
        tasks_class = PreparedTasks if self.learns_from_segments else AuxiliaryTasks
        return tasks_class(self.spec, settings, self.local_envs, self.segment, self.policy.state_size > 0)

    @property
    def segment(self) -> int:
        """Steps of each environment that an update learns from."""
        return self.horizon

    def build_policy(self, network: Network | None) -> ActorCritic:
        settings, spec = self.settings, self.spec
        settings.check_core()
        if settings.gaussian == "spherical" and not spec.has_box_actions:
            raise UsageError(f"gaussian=spherical is for Box actions, but these are {spec.action_space}; omit it")
        policy = ActorCritic(
            spec,
            network,
            settings.separate_value,
            settings.core,
            settings.core_size,
            settings.previous_inputs,
            settings.gaussian,
            settings.normalize_observations,
        )
        by_fan_in = settings.initialization == "fan_in"
        if by_fan_in:
            initialize_by_fan_in(policy)
        elif settings.initialization == "orthogonal":
            initialize_orthogonally(policy)
            initialize_orthogonally(policy.policy_head, 0.01)
            initialize_orthogonally(policy.value_head, 1.0)
        if isinstance(settings, AuxiliarySettings):
            add_heads(policy, settings)
            if by_fan_in:
                with torch.random.fork_rng(devices=[]):  # what is drawn afterwards is as it would be without heads
                    initialize_by_fan_in(policy.auxiliary_heads)
        return policy

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for auxiliary tasks that do not fit the run or this machine."""
        if self.auxiliary:
            self.auxiliary.validate(run, self.horizon, self.device)

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        if self.statistics:
            self.statistics.to(self.device)
        if self.auxiliary:
            self.replay = self.auxiliary.setup(self.policy, seed, self.device)
            self.saves_replay = self.auxiliary.saves_replay

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        """Makes the updates of a rollout, or of a window of some environments, unless nothing is to be learned yet."""
        if self.is_filling:
            return {}
        step = rollout.first_step
        if rollout.reward.device.type == "cpu":  # padding would take time
            rollout = rollout.without_padding()
        return self.update_from(add_final_values(self.policy, rollout, self.settings.discount), step, update)

    def update_from(self, rollout: Rollout, step: int, update: Update) -> Stats:
        """Makes updates by `minimize`; returns what `learn` does.

        rollout: its rewards have the values of truncated episodes already, and it has no padding on a CPU. step: agent
        steps of the whole run before it."""
        raise NotImplementedError(f"{type(self).__name__} has neither learn nor update_from; write one of them")

    def minimize(self, update: Update, batch: tuple[Any, ...], num_samples: Tensor, step: int) -> Stats:
        """Makes one update: `update.minimize` of `loss` and of the auxiliary tasks, drawn anew, at step's rate."""
        rate, extra = self.learning_rate(step), self.draw_auxiliary(update)
        return update.minimize(self.loss, batch, num_samples, rate, extra_losses=extra)

    def loss(self, *batch: Any) -> tuple[Tensor, Stats]:
        """Returns the loss of what `minimize` was given, see `Update.minimize`."""
        raise NotImplementedError(f"{type(self).__name__} has no loss, which its `minimize` needs")

    def evaluate(self, batch: Batch) -> "Outputs":
        """Returns what the policy says now of a batch's steps."""
        parameters, value = self.policy.evaluate(batch.observation, batch.recurrent_inputs)
        return Outputs.of(self.policy.distribution, parameters, value, batch.action)

    @property
    def is_filling(self) -> bool:
        """Whether nothing is to be learned before the replay of the auxiliary tasks is full."""
        return self.auxiliary is not None and self.auxiliary.is_filling

    def draw_auxiliary(self, update: Update) -> list[LossPart]:
        """Draws the auxiliary tasks' parts of the next update's loss."""
        return self.auxiliary.draw(update, self._envs) if self.auxiliary else []

    def state_dict(self) -> dict[str, Any]:
        return {"local": self.statistics.local_state_dict()} if self.statistics else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.statistics and "local" in state:
            self.statistics.load_local_state_dict(state["local"])


class Outputs(NamedTuple):
    """What a policy says of steps: log pi(a|s) of the actions taken, the entropy of pi(.|s), and V(s), each [...]."""

    log_probability: Tensor
    entropy: Tensor
    value: Tensor

    @classmethod
    def of(cls, distribution: Distribution, parameters: Tensor, value: Tensor, action: Tensor) -> "Outputs":
        """Returns the outputs of parameters [..., P] of the action distribution."""
        return cls(distribution.log_probability(parameters, action), distribution.entropy(parameters), value)


def actor_critic_loss(
    outputs: Outputs, gain: Tensor, value_error: Tensor, valid: Tensor, settings: Any, entropy_weight: float | Tensor
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of  -gain  +  value_weight value_error  -  entropy_weight H(pi(.|s)).

    gain: what the policy is to increase, value_error: what the value is to decrease, valid; each [...]. settings: with
    value_weight. Returns the sum, and its terms as sums over valid samples, detached."""
    policy_loss, value_loss = -masked_sum(gain, valid), masked_sum(value_error, valid)
    entropy = masked_sum(outputs.entropy, valid)
    loss_sum = policy_loss + settings.value_weight * value_loss - entropy_weight * entropy
    terms = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "loss": loss_sum}
    return loss_sum, {name: term.detach() for name, term in terms.items()}
