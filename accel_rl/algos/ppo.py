"""PPO: proximal policy optimization with a clipped surrogate (Schulman et al. 2017; Stooke & Abbeel 2018, 5.3)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.actor_critic import ActorCriticAlgo, ActorCriticSettings, bootstrap, split_recurrent_inputs
from accel_rl.algos.base import masked_sum, scalar
from accel_rl.algos.returns import generalized_advantage
from accel_rl.algos.schedules import schedule_setting
from accel_rl.config.fields import setting
from accel_rl.errors import UsageError
from accel_rl.models.distributions import Distribution
from accel_rl.rollout import Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class PPOSettings(ActorCriticSettings):
    epochs: int = setting(4, "passes over each rollout", least=1)
    minibatches: int = setting(4, "equal parts that a pass is cut into, one update each", least=1)
    clip: float = setting(0.2, "how far a ratio may leave 1 before its sample stops counting", above=0)
    clip_schedule: str = schedule_setting("linear", "course of the clip")
    value_clip: float | None = setting(
        None, "how far the value may leave the policy_outputs one; null: not clipped", above=0
    )
    target_kl: float | None = setting(None, "no further epoch once the policy is 1.5 times so far away", above=0)
    normalize_advantage: bool = setting(False, "advantages of a rollout to mean 0 and deviation 1")
    gae_lambda: float = setting(0.95, "generalized advantage: 1: high variance; 0: one-step, biased", least=0, most=1)
    value_weight: float = setting(1.0, "weight of the squared error of the value (not halved)", least=0)
    entropy_weight: float = setting(0.01, "weight of the policy's entropy", least=0)
    entropy_schedule: str = schedule_setting("constant", "course of the entropy weight")


class PPO(ActorCriticAlgo):
    """Several epochs over each rollout, in minibatches: random samples of it, or (with a core) whole sequences.

    Raises UsageError if the samples, or with a core the environments, do not divide into minibatches.
    """

    Settings = PPOSettings
    settings: PPOSettings

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        count, envs, horizon = self.settings.minibatches, self.local_envs, self.horizon
        if self.policy.state_size and envs % count:
            raise UsageError(
                f"a learner's envs={envs} sequences do not divide into minibatches={count}; change one of them"
            )
        if envs * horizon % count:
            raise UsageError(
                f"a learner's envs={envs} x horizon={horizon} = {envs * horizon} samples do not divide into "
                f"minibatches={count}; change one of them"
            )

    def learn(self, rollout: Rollout, update: Update) -> dict[str, Tensor]:
        settings, step, value = self.settings, rollout.first_step, rollout.policy_outputs["value"]
        reward, bootstrap_value = bootstrap(self.policy, rollout, settings.discount)
        advantage, return_ = generalized_advantage(
            reward, value, rollout.done, bootstrap_value, settings.discount, settings.gae_lambda
        )
        if settings.normalize_advantage:
            advantage = standardized(advantage, rollout.valid, update)
        targets = {
            "advantage": advantage,
            "return_": return_,
            "old_value": value,
            "old_log_probability": self.policy.distribution.log_probability(
                rollout.policy_outputs["distribution"], rollout.action
            ),
        }
        changing = {
            "clip": scalar(self.scheduled(settings.clip_schedule, settings.clip, step), like=reward),
            "entropy_weight": scalar(
                self.scheduled(settings.entropy_schedule, settings.entropy_weight, step), like=reward
            ),
        }
        rate, is_sequence = self.learning_rate(step), rollout.recurrent_inputs is not None
        stats: list[dict[str, Tensor]] = []
        num_items = rollout.num_envs if is_sequence else rollout.reward.numel()
        for order in random_orders(settings.epochs, num_items, reward.device):
            for batch in minibatches(rollout, order, settings.minibatches, targets):
                weight = batch["valid"].sum()
                stats.append(update.minimize(self.loss, batch | changing, weight, rate, sliceable=not is_sequence))
            if settings.target_kl is not None:
                kl = torch.stack([each["approx_kl"] for each in stats[-settings.minibatches :]]).mean()
                if update.max(kl) > 1.5 * settings.target_kl:  # waits for the GPU: the price of this setting
                    break
        return {name: torch.stack([each[name] for each in stats]) for name in stats[0]}

    def loss(self, observation: Tensor, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`ppo_loss` of the policy as it is now; observation [N, *O], or [T, B, *O] with its recurrent inputs."""
        settings = self.settings
        recurrent_inputs, targets = split_recurrent_inputs(batch)
        parameters, value = self.policy.evaluate(observation, **recurrent_inputs)
        return ppo_loss(
            self.policy.distribution,
            parameters,
            value,
            value_clip=settings.value_clip,
            value_weight=settings.value_weight,
            **targets,
        )


def ppo_loss(
    distribution: Distribution,
    parameters: Tensor,
    value: Tensor,
    action: Tensor,
    advantage: Tensor,
    return_: Tensor,
    old_value: Tensor,
    old_log_probability: Tensor,
    valid: Tensor,
    clip: Tensor,
    value_clip: float | None,
    value_weight: float,
    entropy_weight: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """sum over valid samples of  -min(rho A, clip(rho, 1 - c, 1 + c) A)  +  value_weight E  -  entropy_weight H.

        rho = pi(a|s) / pi_old(a|s)
        E = (V(s) - R)^2, or with value_clip d the larger of that and (V_old + clip(V - V_old, -d, d) - R)^2

    parameters [..., P] of the action distribution; clip [], all else [...]. Gradients flow through parameters and
    value only. Returns the sum, and the terms as sums over valid samples, too; approx_kl is (rho - 1) - log rho.
    Source: Schulman et al. 2017, equations 7 and 9.
    """
    log_ratio = distribution.log_probability(parameters, action) - old_log_probability
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    policy_loss = -masked_sum(surrogate, valid)
    error = (value - return_).square()
    if value_clip is not None:
        near = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - return_).square())
    value_loss = masked_sum(error, valid)
    entropy = masked_sum(distribution.entropy(parameters), valid)
    loss_sum = policy_loss + value_weight * value_loss - entropy_weight * entropy
    terms = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "loss": loss_sum,
        "approx_kl": masked_sum(ratio - 1 - log_ratio, valid),
        "clip_fraction": masked_sum(((ratio - 1).abs() > clip).float(), valid),
    }
    return loss_sum, {name: term.detach() for name, term in terms.items()}


def random_orders(epochs: int, num_items: int, device: torch.device) -> Tensor:
    """A permutation for each epoch [epochs, N]; all go to a GPU at once, without waiting for it."""
    orders = torch.stack([torch.randperm(num_items) for _ in range(epochs)])  # by the CPU's generator, wherever it runs
    return orders.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else orders


def minibatches(rollout: Rollout, order: Tensor, count: int, targets: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """One pass over the rollout in the given order, in `count` equal parts.

    order: a permutation of the T x B samples, of a recurrent policy of the B environments. Samples [N, ...] from
    anywhere in it; of a recurrent policy whole sequences [T, b, ...] with their recurrent inputs.
    """
    T, B = rollout.horizon, rollout.num_envs
    parts = {"action": rollout.action, "valid": rollout.valid, **targets}
    if rollout.recurrent_inputs is None:
        for chosen in order.chunk(count):
            steps, envs = chosen // B, chosen % B
            yield {"observation": rollout.observations_at(steps, envs)} | {
                name: value[steps, envs] for name, value in parts.items()
            }
        return
    recurrent_inputs = rollout.recurrent_inputs_of(0, T)
    assert recurrent_inputs is not None
    sequences = {"observation": rollout.observations(0, T), **parts, **recurrent_inputs._asdict()}
    state = sequences.pop("state")  # [B, S]: of the first step
    for envs in order.chunk(count):
        yield {name: value[:, envs] for name, value in sequences.items()} | {"state": state[envs]}


def standardized(advantage: Tensor, valid: Tensor, update: Update) -> Tensor:
    """To mean 0 and deviation 1 over the valid samples of all learners."""
    mask = valid.float()
    count = update.sum(mask.sum()).clamp(min=1)
    centred = advantage - update.sum((mask * advantage).sum()) / count
    variance = update.sum((mask * centred.square()).sum()) / count
    return centred / (variance.sqrt() + 1e-6)
