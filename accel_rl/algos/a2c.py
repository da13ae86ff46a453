"""A2C: synchronous advantage actor-critic (Stooke & Abbeel 2018, section 5.3; Mnih et al. 2016, Algorithm S2)."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import mse_loss

from accel_rl.algos.actor_critic import ActorCriticAlgo, ActorCriticSettings, Outputs, actor_critic_terms
from accel_rl.algos.auxiliary_settings import AuxiliarySettings
from accel_rl.algos.base import Stats, sum_terms
from accel_rl.algos.batches import add_final_values, bootstrap, whole_batch
from accel_rl.algos.returns import discounted_return, generalized_advantage
from accel_rl.config.fields import basic_setting, setting
from accel_rl.config.schedules import schedule_setting
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import Update

REFERENCE_BATCH = 80  # samples: the paper's 16 environments x 5 steps, which its learning rate is for


@dataclass(frozen=True)
class A2CSettings(AuxiliarySettings, ActorCriticSettings):
    gae_lambda: float = basic_setting(
        1.0, "1: n-step returns to the end of the rollout; less: generalized advantage", least=0, most=1
    )
    value_weight: float = basic_setting(0.25, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = basic_setting(0.01, "weight of the policy's entropy", least=0)
    entropy_schedule: str = schedule_setting("constant", "schedule of the entropy weight")
    learning_rate_scaling: str = setting(
        "none", "sqrt: times sqrt(envs x horizon / 80) (Stooke & Abbeel 5.3)", choices=("none", "sqrt")
    )


class A2CTargets(NamedTuple):
    advantage: Tensor
    return_: Tensor


class A2C(ActorCriticAlgo):
    """Makes one update per rollout, on all of its samples."""

    Settings = A2CSettings
    settings: A2CSettings

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        step, rollout = rollout.first_step, add_final_values(self.policy, rollout, self.settings.discount)
        return update.once(self.update_on, rollout, self.learning_rate(step), self.scheduled("entropy_weight", step))

    def update_on(
        self, update: Update, rollout: Rollout, learning_rate: float | Tensor, entropy_weight: float | Tensor
    ) -> Stats:
        """Makes the update on a rollout."""
        batch, targets, num_samples = update.graphed(self.prepare, rollout)
        return update.minimize(self.loss, (batch, targets, entropy_weight), num_samples, learning_rate)

    def prepare(self, rollout: Rollout) -> tuple[Batch, A2CTargets, Tensor]:
        """Returns all steps, their targets, and the number of valid steps."""
        settings, value = self.settings, rollout.policy_outputs["value"]  # [T, B], as it was when acting
        reward, done, bootstrap_value = bootstrap(self.policy, rollout, settings.discount)
        if settings.gae_lambda == 1:
            return_ = discounted_return(reward, done, bootstrap_value, settings.discount)
            return whole_batch(rollout, A2CTargets(return_ - value, return_))
        advantage_and_return = generalized_advantage(
            reward, value, done, bootstrap_value, settings.discount, settings.gae_lambda
        )
        return whole_batch(rollout, A2CTargets(*advantage_and_return))

    def learning_rate(self, step: int) -> float:
        ratio = self.num_envs * self.horizon / REFERENCE_BATCH
        return super().learning_rate(step) * (ratio**0.5 if self.settings.learning_rate_scaling == "sqrt" else 1.0)

    def loss(self, batch: Batch, targets: A2CTargets, entropy_weight: Tensor) -> tuple[Tensor, Stats]:
        return a2c_loss(self.evaluate(batch), targets, batch.valid, self.settings, entropy_weight)


def a2c_loss(
    outputs: Outputs, targets: A2CTargets, valid: Tensor, settings: A2CSettings, entropy_weight: float | Tensor
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of

        -log pi(a|s) A  +  value_weight (V(s) - R)^2  -  entropy_weight H(pi(.|s)).

    outputs, targets, valid [...]; A and R come from the targets. Gradients flow through outputs only. Returns the
    sum, and its terms as sums over valid samples, detached. Source: Mnih et al. 2016, Algorithm S2.
    """
    gain = outputs.log_probability * targets.advantage
    value_error = mse_loss(outputs.value, targets.return_, reduction="none")
    return sum_terms(actor_critic_terms(outputs, gain, value_error, settings, entropy_weight), valid)
