"""A2C: synchronous advantage actor-critic (Stooke & Abbeel 2018, section 5.3; Mnih et al. 2016, Algorithm S2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from accel_rl.algos.base import Algo, AlgoSettings, bootstrap
from accel_rl.algos.returns import discounted_return, generalized_advantage
from accel_rl.models.distributions import Distribution
from accel_rl.samplers.rollout import Rollout
from accel_rl.settings import setting
from accel_rl.updates import Update


@dataclass(frozen=True)
class A2CSettings(AlgoSettings):
    gae_lambda: float = setting(
        1.0, "1: n-step returns to the end of the rollout; less: generalized advantage", least=0, most=1
    )
    value_weight: float = setting(0.25, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = setting(0.01, "weight of the policy's entropy", least=0)


class A2C(Algo):
    """One update per rollout, on all of its samples."""

    Settings = A2CSettings
    settings: A2CSettings

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        settings, value = self.settings, rollout.recorded["value"]  # [T, B], as it was when acting
        reward, bootstrap_value = bootstrap(self.policy, rollout, settings.discount)
        if settings.gae_lambda == 1:
            return_ = discounted_return(reward, rollout.done, bootstrap_value, settings.discount)
            advantage = return_ - value
        else:
            advantage, return_ = generalized_advantage(
                reward, value, rollout.done, bootstrap_value, settings.discount, settings.gae_lambda
            )

        observation = rollout.observations(0, rollout.horizon).flatten(0, 1)
        parameters, new_value = self.policy(observation)
        loss_sum, stats = a2c_loss(
            self.policy.distribution,
            parameters,
            new_value,
            rollout.action.flatten(0, 1),
            advantage.flatten(),
            return_.flatten(),
            rollout.valid.flatten(),
            settings.value_weight,
            settings.entropy_weight,
        )
        weight = update.sum(rollout.valid.sum())
        stats["grad_norm"] = update.step(loss_sum, weight, self.learning_rate(rollout.first_step))
        return stats


def a2c_loss(
    distribution: Distribution,
    parameters: Tensor,
    value: Tensor,
    action: Tensor,
    advantage: Tensor,
    return_: Tensor,
    valid: Tensor,
    value_weight: float,
    entropy_weight: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum over valid samples of  -log pi(a|s) A  +  value_weight (V(s) - R)^2  -  entropy_weight H(pi(.|s)).

    parameters [N, P] of the action distribution, action [N, ...]; value, advantage, return_, valid [N]. Gradients flow
    through parameters and value only. Returns the sum, and the terms' means over valid samples.
    """
    mask = valid.float()
    policy_loss = -(mask * distribution.log_probability(parameters, action) * advantage).sum()
    value_loss = (mask * (value - return_).square()).sum()
    entropy = (mask * distribution.entropy(parameters)).sum()
    loss_sum = policy_loss + value_weight * value_loss - entropy_weight * entropy
    with torch.no_grad():
        count = mask.sum().clamp(min=1)
        terms = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "loss": loss_sum}
        return loss_sum, {name: term.detach() / count for name, term in terms.items()}
