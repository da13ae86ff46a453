"""A2C: synchronous advantage actor-critic (Stooke & Abbeel 2018, section 5.3; Mnih et al. 2016, Algorithm S2)."""

from dataclasses import dataclass

from torch import Tensor

from accel_rl.algos.actor_critic import (
    ActorCriticAlgo,
    ActorCriticSettings,
    bootstrap,
    split_recurrent_inputs,
    whole_batch,
)
from accel_rl.algos.base import masked_sum, scalar
from accel_rl.algos.returns import discounted_return, generalized_advantage
from accel_rl.algos.schedules import schedule_setting
from accel_rl.config.fields import setting
from accel_rl.models.distributions import Distribution
from accel_rl.rollout import Rollout
from accel_rl.updates import Update

REFERENCE_BATCH = 80  # samples: 16 environments x 5 steps, to which the paper's learning rate belongs


@dataclass(frozen=True)
class A2CSettings(ActorCriticSettings):
    gae_lambda: float = setting(
        1.0, "1: n-step returns to the end of the rollout; less: generalized advantage", least=0, most=1
    )
    value_weight: float = setting(0.25, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = setting(0.01, "weight of the policy's entropy", least=0)
    entropy_schedule: str = schedule_setting("constant", "course of the entropy weight")
    learning_rate_scaling: str = setting(
        "none", "sqrt: times the root of (envs x horizon / 80) (Stooke & Abbeel 5.3)", choices=("none", "sqrt")
    )


class A2C(ActorCriticAlgo):
    """One update per rollout, on all of its samples."""

    Settings = A2CSettings
    settings: A2CSettings

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        settings, value = self.settings, rollout.policy_outputs["value"]  # [T, B], as it was when acting
        reward, bootstrap_value = bootstrap(self.policy, rollout, settings.discount)
        if settings.gae_lambda == 1:
            return_ = discounted_return(reward, rollout.done, bootstrap_value, settings.discount)
            advantage = return_ - value
        else:
            advantage, return_ = generalized_advantage(
                reward, value, rollout.done, bootstrap_value, settings.discount, settings.gae_lambda
            )

        step = rollout.first_step
        batch = whole_batch(rollout, advantage=advantage, return_=return_)
        entropy_weight = self.scheduled(settings.entropy_schedule, settings.entropy_weight, step)
        batch["entropy_weight"] = scalar(entropy_weight, like=reward)
        weight, is_sequence = rollout.valid.sum(), rollout.recurrent_inputs is not None
        return update.minimize(self.loss, batch, weight, self.learning_rate(step), sliceable=not is_sequence)

    def learning_rate(self, step: int) -> float:
        ratio = self.num_envs * self.horizon / REFERENCE_BATCH
        return super().learning_rate(step) * (ratio**0.5 if self.settings.learning_rate_scaling == "sqrt" else 1.0)

    def loss(self, observation: Tensor, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`a2c_loss` of the policy as it is now; observation [N, *O], or [T, B, *O] with its recurrent inputs."""
        recurrent_inputs, targets = split_recurrent_inputs(batch)
        parameters, value = self.policy.evaluate(observation, **recurrent_inputs)
        return a2c_loss(self.policy.distribution, parameters, value, value_weight=self.settings.value_weight, **targets)


def a2c_loss(
    distribution: Distribution,
    parameters: Tensor,
    value: Tensor,
    action: Tensor,
    advantage: Tensor,
    return_: Tensor,
    valid: Tensor,
    value_weight: float,
    entropy_weight: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum over valid samples of  -log pi(a|s) A  +  value_weight (V(s) - R)^2  -  entropy_weight H(pi(.|s)).

    parameters [..., P] of the action distribution; value, advantage, return_, valid [...]. Gradients flow through
    parameters and value only. Returns the sum, and the terms as sums over valid samples, too.
    """
    policy_loss = -masked_sum(distribution.log_probability(parameters, action) * advantage, valid)
    value_loss = masked_sum((value - return_).square(), valid)
    entropy = masked_sum(distribution.entropy(parameters), valid)
    loss_sum = policy_loss + value_weight * value_loss - entropy_weight * entropy
    terms = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "loss": loss_sum}
    return loss_sum, {name: term.detach() for name, term in terms.items()}
