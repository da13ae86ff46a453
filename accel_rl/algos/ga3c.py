"""GA3C's loss on A2C's targets (Babaeizadeh et al. 2017, section 4.4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings, A2CTargets, a2c_loss
from accel_rl.algos.base import RunInfo, Stats
from accel_rl.config.fields import setting
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic, Network
from accel_rl.models.distributions import Categorical
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class GA3CSettings(A2CSettings):
    log_epsilon: float = setting(
        1e-6, "added to probabilities before logarithms, also in the entropy; for Discrete actions", least=0
    )


class GA3C(A2C):
    """Descends the gradient of a sum, with the learner's current value, and log(pi + epsilon) instead of log pi.

    Source: Babaeizadeh et al. 2017, equations 2 and 5."""

    Settings = GA3CSettings
    settings: GA3CSettings

    def build_policy(self, network: Network | None) -> ActorCritic:
        policy, epsilon = super().build_policy(network), self.settings.log_epsilon
        if epsilon:
            if not isinstance(policy.distribution, Categorical):
                raise UsageError(
                    f"log_epsilon={epsilon:g} is for Discrete actions, but these are {self.spec.action_space}; "
                    "use --log-epsilon 0"
                )
            policy.distribution.log_epsilon = epsilon
        return policy

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for generalized advantages, which would use the values from acting."""
        super().validate(run)
        if self.settings.gae_lambda != 1:
            raise UsageError(
                f"{type(self).__name__} takes gae_lambda=1, but it is {self.settings.gae_lambda:g}; for another one, "
                "use --algo a2c --sampler queued"
            )

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        stats = super().learn(rollout, update)
        count = stats.pop("num_samples").clamp(min=1)  # summed over the learners that update together
        return {
            name: value / count if name.endswith(("loss", "entropy")) else value  # still logged as means
            for name, value in stats.items()
        }

    def prepare(self, rollout: Rollout) -> tuple[Batch, A2CTargets, Tensor]:
        """Returns A2C's batch and targets, and 0 for num_samples, so that the sum's gradient is not divided."""
        batch, targets, num_samples = super().prepare(rollout)
        return batch, targets, torch.zeros_like(num_samples)

    def loss(self, batch: Batch, targets: A2CTargets, entropy_weight: Tensor) -> tuple[Tensor, Stats]:
        outputs = self.evaluate(batch)
        targets = targets._replace(advantage=targets.return_ - outputs.value.detach())
        loss_sum, terms = a2c_loss(outputs, targets, batch.valid, self.settings, entropy_weight)
        return loss_sum, terms | {"num_samples": batch.valid.sum()}
