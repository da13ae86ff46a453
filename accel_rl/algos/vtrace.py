"""A2C with V-trace and the multi-batch strategy (Dalton et al. 2020, CuLE; Espeholt et al. 2018, IMPALA).

The environments are cut into batches. While all of them go on, one update is made every few steps, on the next batch
with its last steps: more and smaller updates than A2C's for the same samples. Most of these were made with older
parameters, which V-trace corrects.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from accel_rl.algos.actor_critic import ActorCriticAlgo, ActorCriticSettings, bootstrap, split_recurrent_inputs
from accel_rl.algos.base import masked_sum, scalar
from accel_rl.algos.returns import vtrace
from accel_rl.algos.schedules import schedule_setting
from accel_rl.config.fields import setting
from accel_rl.errors import UsageError
from accel_rl.models.distributions import Distribution
from accel_rl.rollout import Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class VTraceSettings(ActorCriticSettings):
    batches: int = setting(20, "equal parts that the environments are cut into, one for each update", least=1)
    batch_steps: int = setting(20, "newest steps of these environments that an update learns from", least=1)
    steps_per_update: int = setting(1, "steps of all environments between two updates", least=1)
    rho_bar: float = setting(1.0, "largest weight of a sample", above=0)
    c_bar: float = setting(1.0, "largest weight of what comes after it; at most rho_bar", above=0)
    value_weight: float = setting(0.5, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = setting(0.01, "weight of the policy's entropy", least=0)
    entropy_schedule: str = schedule_setting("constant", "course of the entropy weight")


class VTrace(ActorCriticAlgo):
    """Learns while sampling: at every steps_per_update-th step, from the next batch of environments.

    A sample is used batch_steps / (steps_per_update batches) times. Raises UsageError if the environments do not
    divide into batches, if c_bar is larger than rho_bar, or if the run ends before the first update.
    """

    Settings = VTraceSettings
    settings: VTraceSettings

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        settings = self.settings
        if self.local_envs % settings.batches:
            raise UsageError(
                f"a learner's envs={self.local_envs} do not divide into batches={settings.batches}; change one of them"
            )
        if settings.c_bar > settings.rho_bar:
            raise UsageError(f"c_bar={settings.c_bar} must be at most rho_bar={settings.rho_bar}")
        if settings.batch_steps * self.num_envs >= self.schedule_steps:
            raise UsageError(
                f"batch_steps={settings.batch_steps} x envs={self.num_envs} are not reached in {self.schedule_steps} "
                "steps: nothing would be learned; make the run longer or the batches shorter"
            )
        self.window = settings.batch_steps

    def due(self, step: int) -> slice | None:
        settings = self.settings
        if step < settings.batch_steps or step % settings.steps_per_update:
            return None
        size = self.local_envs // settings.batches
        first = step // settings.steps_per_update % settings.batches * size
        return slice(first, first + size)

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        settings, step = self.settings, rollout.first_step
        reward, bootstrap_value = bootstrap(self.policy, rollout, settings.discount)
        recurrent_inputs = rollout.recurrent_inputs_of(0, rollout.horizon)
        batch = {
            "observation": rollout.observations(0, rollout.horizon),
            "action": rollout.action,
            "reward": reward,
            "done": rollout.done,
            "valid": rollout.valid,
            "bootstrap_value": bootstrap_value,
            "behaviour": self.policy.distribution.log_probability(
                rollout.policy_outputs["distribution"], rollout.action
            ),
            "entropy_weight": scalar(
                self.scheduled(settings.entropy_schedule, settings.entropy_weight, step), like=reward
            ),
            **(recurrent_inputs._asdict() if recurrent_inputs else {}),
        }
        return update.minimize(self.loss, batch, rollout.valid.sum(), self.learning_rate(step), sliceable=False)

    def loss(self, observation: Tensor, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`vtrace_loss` of the policy as it is now; observation [T, B, *O]."""
        settings = self.settings
        recurrent_inputs, targets = split_recurrent_inputs(batch)
        parameters, value = self.policy.evaluate(observation, **recurrent_inputs)
        return vtrace_loss(
            self.policy.distribution,
            parameters,
            value,
            discount=settings.discount,
            rho_bar=settings.rho_bar,
            c_bar=settings.c_bar,
            value_weight=settings.value_weight,
            **targets,
        )


def vtrace_loss(
    distribution: Distribution,
    parameters: Tensor,
    value: Tensor,
    action: Tensor,
    reward: Tensor,
    done: Tensor,
    valid: Tensor,
    bootstrap_value: Tensor,
    behaviour: Tensor,
    discount: float,
    rho_bar: float,
    c_bar: float,
    value_weight: float,
    entropy_weight: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum over valid samples of  -log pi(a|s) A  +  value_weight (V(s) - v)^2  -  entropy_weight H(pi(.|s)).

    v and A = rho (r + discount v' - V) are those of `returns.vtrace`, for the policy as it is now against the one that
    acted, whose log mu(a|s) is `behaviour`. parameters [T, B, P] of the action distribution; bootstrap_value [B]; all
    else [T, B]. Gradients flow through parameters and value only. Returns the sum, and the terms as sums over valid
    samples, too. Source: Dalton et al. 2020, appendix A.1.
    """
    log_probability = distribution.log_probability(parameters, action)
    log_ratio = (log_probability - behaviour).detach()
    target, advantage = vtrace(reward, value.detach(), done, bootstrap_value, log_ratio, discount, rho_bar, c_bar)
    policy_loss = -masked_sum(log_probability * advantage, valid)
    value_loss = masked_sum((value - target).square(), valid)
    entropy = masked_sum(distribution.entropy(parameters), valid)
    loss_sum = policy_loss + value_weight * value_loss - entropy_weight * entropy
    terms = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "loss": loss_sum,
        "ratio": masked_sum(log_ratio.exp(), valid),
    }
    return loss_sum, {name: term.detach() for name, term in terms.items()}
