"""PPO: proximal policy optimization with a clipped surrogate (Schulman et al. 2017; Stooke & Abbeel 2018, 5.3)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from accel_rl.algos.actor_critic import ActorCriticAlgo, ActorCriticSettings, Outputs, actor_critic_terms
from accel_rl.algos.auxiliary_settings import AuxiliarySettings
from accel_rl.algos.base import RunInfo, Stats, masked_sum, stack_stats, sum_terms
from accel_rl.algos.batches import add_final_values, bootstrap, check_minibatches, indexable, minibatch, random_orders
from accel_rl.algos.returns import generalized_advantage
from accel_rl.config.fields import basic_setting, setting
from accel_rl.config.schedules import schedule_setting
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class PPOSettings(AuxiliarySettings, ActorCriticSettings):
    epochs: int = basic_setting(4, "passes over each rollout", least=1)
    minibatches: int = basic_setting(4, "equal parts of a pass, one update each", least=1)
    clip: float = basic_setting(0.2, "how far a ratio may move from 1 before its sample stops counting", above=0)
    clip_schedule: str = schedule_setting("linear", "schedule of the clip")
    value_clip: float | None = setting(None, "largest change from the recorded value; null: not clipped", above=0)
    target_kl: float | None = setting(
        None, "stop the epochs once the approximate KL divergence exceeds 1.5 times this", above=0
    )
    normalize_advantage: str = basic_setting(
        "none",
        "standardize advantages to mean 0 and std 1 over the whole rollout, or within each minibatch",
        choices=("none", "rollout", "minibatch"),
    )
    gae_lambda: float = basic_setting(
        0.95, "generalized advantage: 1: high variance; 0: one-step, biased", least=0, most=1
    )
    value_weight: float = basic_setting(1.0, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = basic_setting(0.01, "weight of the policy's entropy", least=0)
    entropy_schedule: str = schedule_setting("constant", "schedule of the entropy weight")


class PPOTargets(NamedTuple):
    """PPO's targets: each [T, B], or with the shape of the batch."""

    advantage: Tensor
    return_: Tensor
    old_value: Tensor
    old_log_probability: Tensor


class PPO(ActorCriticAlgo):
    """Makes several epochs over each rollout, in minibatches: random samples, or whole sequences with a core."""

    Settings = PPOSettings
    settings: PPOSettings

    @property
    def samples_per_update(self) -> int:
        return super().samples_per_update // self.settings.minibatches

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError if the samples, or with a core the environments, do not divide into minibatches. Merged
        segments can have any number of samples."""
        super().validate(run)
        if not self.learns_from_segments:
            check_minibatches(self)

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        settings, stats, step = self.settings, list[Stats](), rollout.first_step
        rollout, rate = add_final_values(self.policy, rollout, settings.discount), self.learning_rate(step)
        coefficients = tuple(torch.tensor(self.scheduled(name, step)) for name in ("clip", "entropy_weight"))
        orders = random_orders(rollout, settings.epochs)
        source, targets = update.graphed(self.prepare, rollout)
        if settings.normalize_advantage == "rollout":
            targets = targets._replace(advantage=standardized(targets.advantage, source.valid, update))
        for order in orders:
            parts = order.chunk(settings.minibatches)  # fewer if segments hold few samples
            stats += update.repeat(self.update_on, parts, rate, source, targets, coefficients)
            if settings.target_kl is not None and self._is_too_far(stats[-len(parts) :], update):
                break
        return stack_stats(stats)

    def update_on(
        self,
        update: Update,
        chosen: Tensor,
        learning_rate: float | Tensor,
        source: Rollout | Batch,
        targets: PPOTargets,
        coefficients: tuple[Tensor, ...],
    ) -> Stats:
        """Makes one update, on a minibatch. source, chosen: see `minibatch`; coefficients: clip and entropy weight."""
        batch, part, num_samples = update.graphed(minibatch, source, targets, chosen)
        if self.settings.normalize_advantage == "minibatch":
            part = part._replace(advantage=standardized(part.advantage, batch.valid, update))
        return update.minimize(self.loss, (batch, part, *coefficients), num_samples, learning_rate)

    def prepare(self, rollout: Rollout) -> tuple[Rollout | Batch, PPOTargets]:
        """Returns the steps and their targets, as `indexable` does. On a GPU, all minibatches find them in one place.
        Advantages are not standardized."""
        settings, outputs = self.settings, rollout.policy_outputs  # value and distribution of the acting policy
        reward, done, bootstrap_value = bootstrap(self.policy, rollout, settings.discount)
        advantage, return_ = generalized_advantage(
            reward, outputs["value"], done, bootstrap_value, settings.discount, settings.gae_lambda
        )
        old_log_probability = self.policy.distribution.log_probability(outputs["distribution"], rollout.action)
        source, targets = indexable(rollout, PPOTargets(advantage, return_, outputs["value"], old_log_probability))
        if self.policy.normalizes_rows:  # once for all epochs
            assert isinstance(source, Batch) and self.policy.norm
            source = source._replace(observation=self.policy.norm(source.observation))
        return source, targets

    def _is_too_far(self, epoch: list[Stats], update: Update) -> bool:
        """Returns whether the policy is too far from the one that acted. It waits for a GPU, the price of target_kl."""
        assert self.settings.target_kl is not None
        kl = torch.stack([each["approx_kl"] for each in epoch]).mean()
        return bool(update.max(kl) > 1.5 * self.settings.target_kl)

    def loss(self, batch: Batch, targets: PPOTargets, clip: Tensor, entropy_weight: Tensor) -> tuple[Tensor, Stats]:
        outputs = self.evaluate(batch, is_normalized=self.policy.normalizes_rows)
        return ppo_loss(outputs, targets, batch.valid, self.settings, clip, entropy_weight)


def ppo_loss(
    outputs: Outputs,
    targets: PPOTargets,
    valid: Tensor,
    settings: PPOSettings,
    clip: Tensor,
    entropy_weight: float | Tensor,
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of

        -min(rho A, clip(rho, 1 - c, 1 + c) A)  +  value_weight E  -  entropy_weight H,

        where the minimum is computed as min(rho A, A + c |A|),

        rho = pi(a|s) / pi_old(a|s)
        E = (V(s) - R)^2, or with value_clip d the larger of that and (V_old + clip(V - V_old, -d, d) - R)^2

    outputs, targets, valid [...]; clip []. Gradients flow through outputs only. Returns the sum, and its terms as sums
    over valid samples, detached; approx_kl is (rho - 1) - log rho. Source: Schulman et al. 2017, equations 7 and 9.
    """
    advantage, return_, old_value, old_log_probability = targets
    log_ratio = outputs.log_probability - old_log_probability
    log_ratio = log_ratio.masked_fill(~valid, 0.0)  # or exp may overflow, with a gradient of 0 x infinity
    ratio = log_ratio.exp()
    surrogate = (ratio * advantage).clamp(max=advantage + clip * advantage.abs())  # faster than torch.minimum
    error = mse_loss(outputs.value, return_, reduction="none")
    if (most := settings.value_clip) is not None:
        near = old_value + (outputs.value - old_value).clamp(-most, most)
        error = torch.maximum(error, (near - return_).square())
    terms = actor_critic_terms(outputs, surrogate, error, settings, entropy_weight)
    with torch.no_grad():
        # With expm1 this is 0 where the policies agree, despite rounding; ratio - 1 would lose all digits there.
        terms["approx_kl"] = (torch.expm1(log_ratio) - log_ratio).clamp(min=0)
        terms["clip_fraction"] = ((ratio - 1).abs() > clip).float()
    return sum_terms(terms, valid)


def standardized(advantage: Tensor, valid: Tensor, update: Update) -> Tensor:
    """Returns advantages [...] with mean 0 and std 1 over the valid samples of all learners."""
    count = update.sum(valid.float().sum()).clamp(min=1)
    centered = advantage - update.sum(masked_sum(advantage, valid)) / count
    variance = update.sum(masked_sum(centered.square(), valid)) / count
    return centered / (variance.sqrt() + 1e-6)
