"""A2C with V-trace and the multi-batch strategy (Dalton et al. 2020, CuLE; Espeholt et al. 2018, IMPALA).

The environments are divided into batches. While all of them keep stepping, one update is made every few steps, from the
newest steps of the next batch. This makes more and smaller updates than A2C from the same samples. Most samples come
from older parameters; V-trace corrects for that.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import mse_loss

from accel_rl.algos.actor_critic import ActorCriticAlgo, ActorCriticSettings, Outputs, actor_critic_terms
from accel_rl.algos.auxiliary_settings import AuxiliarySettings
from accel_rl.algos.base import RunInfo, Stats, Window, sum_terms
from accel_rl.algos.batches import add_final_values, bootstrap
from accel_rl.algos.returns import vtrace
from accel_rl.config.fields import basic_setting, setting
from accel_rl.config.schedules import schedule_setting
from accel_rl.errors import UsageError
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class VTraceSettings(AuxiliarySettings, ActorCriticSettings):
    batches: int = basic_setting(20, "equal parts of the environments; each update learns from one of them", least=1)
    batch_steps: int = basic_setting(20, "newest steps of a batch that an update learns from", least=1)
    steps_per_update: int = basic_setting(1, "steps of each environment between two updates", least=1)
    rho_bar: float = setting(1.0, "largest weight of a sample", above=0)
    c_bar: float = setting(1.0, "largest weight of what follows a sample; at most rho_bar", above=0)
    value_weight: float = basic_setting(0.5, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = basic_setting(0.01, "weight of the policy's entropy", least=0)
    entropy_schedule: str = schedule_setting("constant", "schedule of the entropy weight")


class VTraceTargets(NamedTuple):
    """The targets of V-trace; [T, B] unless stated otherwise."""

    reward: Tensor
    done: Tensor
    bootstrap_value: Tensor  # [B]
    behaviour: Tensor  # log mu(a|s) of the acting policy


class VTrace(ActorCriticAlgo):
    """Learns while sampling: every steps_per_update steps, from the next batch of environments.

    A sample is used batch_steps / (steps_per_update x batches) times. A rollout merged from segments is used once, as a
    whole; these three settings do not matter then.
    """

    Settings = VTraceSettings
    settings: VTraceSettings

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._env_steps = 0  # steps of each environment, including all of the current rollout
        if not self.learns_from_segments:
            self.window = Window(self.settings.batch_steps, self._envs_to_update)

    @property
    def samples_per_update(self) -> int:
        return self.local_envs // self.settings.batches * self.settings.batch_steps

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError if the environments do not divide into batches, if c_bar is larger than rho_bar, or if the
        run ends before the first update."""
        super().validate(run)
        settings = self.settings
        if settings.c_bar > settings.rho_bar:
            raise UsageError(f"c_bar={settings.c_bar} must be at most rho_bar={settings.rho_bar}")
        if self.learns_from_segments:
            return
        if self.local_envs % settings.batches:
            raise UsageError(
                f"a learner's envs={self.local_envs} do not divide into batches={settings.batches}; change one of them"
            )
        first_step = max(settings.batch_steps, self.horizon if self.statistics else 0)
        first_update = math.ceil(first_step / settings.steps_per_update) * settings.steps_per_update
        if first_update * run.num_envs >= run.steps:
            raise UsageError(
                f"the first update, after {first_update} steps of each of {run.num_envs} environments (batch_steps="
                f"{settings.batch_steps}), is not reached in {run.steps} steps: nothing would be learned; make the run "
                "longer or the batches shorter"
            )

    def before_rollout(self, step: int) -> None:
        self._env_steps += self.horizon

    def _envs_to_update(self, t: int) -> slice | None:
        settings, step = self.settings, self._env_steps - self.horizon + t
        if step < settings.batch_steps or step % settings.steps_per_update:
            return None
        size = self.local_envs // settings.batches
        first = step // settings.steps_per_update % settings.batches * size
        return slice(first, first + size)

    def on_step(self, t: int, recent: Rollout | None, update: Update) -> Stats:
        """Makes one update from the newest steps of the batch of environments that is due."""
        assert recent
        return self._learn_from(recent, update)

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        """Learns from merged segments; `on_step` learns from all other rollouts."""
        return self._learn_from(rollout, update) if self.learns_from_segments else {}

    def _learn_from(self, rollout: Rollout, update: Update) -> Stats:
        step, rollout = rollout.first_step, add_final_values(self.policy, rollout, self.settings.discount)
        # These tensors are columns of the sampler's tensors. Each is copied separately, so keep only what is needed.
        outputs = {"distribution": rollout.policy_outputs["distribution"]}
        rollout = replace(rollout, reset=rollout.reset[:0], policy_outputs=outputs)
        return update.once(self.update_on, rollout, self.learning_rate(step), self.scheduled("entropy_weight", step))

    def update_on(
        self, update: Update, rollout: Rollout, learning_rate: float | Tensor, entropy_weight: float | Tensor
    ) -> Stats:
        """Makes the update on a rollout."""
        batch, targets, num_samples = update.graphed(self.prepare, rollout)
        return update.minimize(self.loss, (batch, targets, entropy_weight), num_samples, learning_rate)

    def prepare(self, rollout: Rollout) -> tuple[Batch, VTraceTargets, Tensor]:
        """Returns sequences, their targets, and the number of valid steps."""
        following = bootstrap(self.policy, rollout, self.settings.discount)
        behaviour = self.policy.distribution.log_probability(rollout.policy_outputs["distribution"], rollout.action)
        return rollout.sequences(), VTraceTargets(*following, behaviour), rollout.valid.sum()

    def loss(self, batch: Batch, targets: VTraceTargets, entropy_weight: Tensor) -> tuple[Tensor, Stats]:
        """Returns `vtrace_loss` of the current policy; batch [T, B, ...]."""
        return vtrace_loss(self.evaluate(batch), targets, batch.valid, self.settings, entropy_weight)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"env_steps": self._env_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._env_steps = state["env_steps"]


def vtrace_loss(
    outputs: Outputs, targets: VTraceTargets, valid: Tensor, settings: VTraceSettings, entropy_weight: float | Tensor
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of

        -log pi(a|s) A  +  value_weight (V(s) - v)^2  -  entropy_weight H(pi(.|s)).

    v and A = rho (r + discount v' - V) are those of `returns.vtrace`, for the current policy against the one that
    acted, whose log mu(a|s) is `behaviour`. outputs, valid [T, B]. Gradients flow through outputs only. Returns the
    sum, and its terms as sums over valid samples, detached. Source: Dalton et al. 2020, appendix A.1.
    """
    reward, done, bootstrap_value, behaviour = targets
    log_ratio = (outputs.log_probability - behaviour).detach()
    bounds = (settings.discount, settings.rho_bar, settings.c_bar)
    target, advantage = vtrace(reward, outputs.value.detach(), done, bootstrap_value, log_ratio, *bounds)
    gain, value_error = outputs.log_probability * advantage, mse_loss(outputs.value, target, reduction="none")
    terms = actor_critic_terms(outputs, gain, value_error, settings, entropy_weight)
    return sum_terms(terms | {"ratio": log_ratio.exp()}, valid)
