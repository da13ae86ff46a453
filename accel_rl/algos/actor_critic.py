"""Defines the parts that actor-critics share: network settings, running statistics, and the form of the loss."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from accel_rl.algos.base import Algo, AlgoSettings, CoreSettings, MakeUpdate, Stats
from accel_rl.algos.running_statistics import Normalizers
from accel_rl.config.fields import basic_setting, setting
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.trunks import initialize_by_fan_in, initialize_orthogonally
from accel_rl.rollout import Batch


@dataclass(frozen=True)
class ActorCriticSettings(CoreSettings, AlgoSettings):
    separate_value: bool = setting(False, "policy and value share no layers")
    gaussian: str = setting(
        "diagonal",
        "Box actions: a learned std for each dimension, the same for all observations (diagonal), or one variance for "
        "all dimensions that depends on the observation (spherical)",
        choices=("diagonal", "spherical"),
    )
    log_std_init: float = setting(
        0.0, "Box actions, gaussian=diagonal: logarithm of the initial std", least=-20, most=5
    )
    initialization: str = setting(
        "normalized",
        "initial weights: normalized: weight vectors of norm 1 (policy head: 0.01), Glorot-uniform convolutions, "
        "biases of 0; fan_in: weights and biases uniform within +-1/sqrt(inputs of a unit) (GA3C); orthogonal: "
        "orthogonal matrices times sqrt(2) (policy head: 0.01, value head: 1), biases of 0",
        choices=("normalized", "fan_in", "orthogonal"),
    )
    normalize_observations: bool = basic_setting(
        False,
        "normalize observations to mean 0 and variance 1 by running statistics; pictures of bytes: subtract the "
        "background",
    )
    normalize_returns: bool = basic_setting(False, "divide rewards by the running std of discounted returns")


class ActorCriticAlgo(Algo):
    """An algorithm that acts and learns with an ActorCritic. A subclass implements `learn`, and usually `loss`.

    Raises UsageError for network settings that do not fit together."""

    accepts_segments = True
    Settings: ClassVar[type[AlgoSettings]] = ActorCriticSettings
    policy: ActorCritic
    statistics: Normalizers | None

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.statistics = Normalizers.of(self)

    def build_policy(self, network: Network | None) -> ActorCritic:
        settings, spec = self.settings, self.spec
        if settings.gaussian == "spherical" and not spec.has_box_actions:
            raise UsageError(f"gaussian=spherical is for Box actions, but these are {spec.action_space}; omit it")
        if settings.log_std_init and (settings.gaussian == "spherical" or not spec.has_box_actions):
            raise UsageError("log_std_init is for gaussian=diagonal and Box actions; omit it, or set it to 0")
        policy = ActorCritic(
            spec,
            network,
            settings.separate_value,
            settings.core,
            settings.core_size,
            settings.previous_inputs,
            settings.gaussian,
            settings.normalize_observations,
            settings.log_std_init,
        )
        if settings.initialization == "fan_in":
            initialize_by_fan_in(policy)
        elif settings.initialization == "orthogonal":
            initialize_orthogonally(policy)
            initialize_orthogonally(policy.policy_head, 0.01)
            initialize_orthogonally(policy.value_head, 1.0)
        return policy

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        if self.statistics:
            self.statistics.to(self.device)

    def evaluate(self, batch: Batch, is_normalized: bool = False) -> "Outputs":
        """Evaluates the current policy on a batch's steps; is_normalized: see `ActorCritic.evaluate_normalized`."""
        if is_normalized:
            parameters, value = self.policy.evaluate_normalized(batch.observation)
        else:
            parameters, value = self.policy.evaluate(batch.observation, batch.recurrent_inputs)
        distribution = self.policy.distribution
        log_probability = distribution.log_probability(parameters, batch.action)
        has_bonus = getattr(self.settings, "entropy_weight", 1) > 0  # otherwise the entropy is only logged
        return Outputs(log_probability, distribution.entropy(parameters if has_bonus else parameters.detach()), value)

    def state_dict(self) -> dict[str, Any]:
        return {"local": self.statistics.local_state_dict()} if self.statistics else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.statistics and "local" in state:
            self.statistics.load_local_state_dict(state["local"])


class Outputs(NamedTuple):
    """A policy's outputs for each step: log pi(a|s) of the action taken, entropy of pi(.|s), and V(s), all [...]."""

    log_probability: Tensor
    entropy: Tensor
    value: Tensor


def actor_critic_terms(
    outputs: Outputs, gain: Tensor, value_error: Tensor, settings: Any, entropy_weight: float | Tensor
) -> Stats:
    """Returns each sample's loss,  -gain  +  value_weight value_error  -  entropy_weight H(pi(.|s)),  and its terms.

    gain: the policy maximizes it; value_error: the value minimizes it; each [...]. settings has a value_weight."""
    policy_loss = -gain
    loss = policy_loss + settings.value_weight * value_error - entropy_weight * outputs.entropy
    return {"policy_loss": policy_loss, "value_loss": value_error, "entropy": outputs.entropy, "loss": loss}
