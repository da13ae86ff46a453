"""PPO's loss against plain arithmetic; its minibatches, epochs and settings on real rollouts."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.base import RunInfo
from accel_rl.algos.batches import add_final_values, bootstrap
from accel_rl.algos.ppo import PPO, PPOSettings, PPOTargets, ppo_loss, standardized
from accel_rl.algos.returns import generalized_advantage
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.updates.optimizers import Adam
from tests.helpers.losses import DISTRIBUTIONS, draw, entropy, indices, log_probability, outputs_of, slope
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate

PONG = EnvConfig("pong", options={"max_episode_steps": 7, "noop_max": 3})
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})
CORE = {"core": "lstm", "core_size": 8, "previous_inputs": True}


class Batch:
    """Random float64 samples of PPO; some are invalid and hold garbage."""

    def __init__(self, kind: str, *shape: int):
        self.kind = kind
        self.distribution, self.parameters, self.action = draw(kind, *shape)
        generator = torch.Generator().manual_seed(1)
        randn = lambda: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.value, self.old_value, self.advantage, self.return_ = randn(), randn(), randn(), randn()
        self.old_log_probability = self.distribution.log_probability(self.parameters, self.action) + 0.3 * randn()
        self.valid = torch.rand(shape, generator=generator) > 0.3
        assert 0 < self.valid.sum() < self.valid.numel()
        self.advantage[~self.valid] = 1e6
        self.return_[~self.valid] = -1e6

    def loss(self, value_clip: float | None) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = outputs_of(self.distribution, self.parameters, self.value, self.action)
        targets = PPOTargets(self.advantage, self.return_, self.old_value, self.old_log_probability)
        settings = PPOSettings(value_clip=value_clip, value_weight=0.7)
        return ppo_loss(outputs, targets, self.valid, settings, torch.tensor(0.2, dtype=torch.float64), 0.03)

    def expected(self, value_clip: float | None) -> dict[str, float]:
        """Returns the terms of the loss from plain loops."""
        names = ("policy_loss", "value_loss", "entropy", "loss", "approx_kl", "clip_fraction")
        sums = dict.fromkeys(names, 0.0)
        for i in indices(self.valid.shape):
            if not self.valid[i]:
                continue
            value, old, return_ = (x[i].item() for x in (self.value, self.old_value, self.return_))
            log_p = log_probability(self.kind, self.parameters[i].tolist(), self.action[i].tolist())
            ratio, advantage = math.exp(log_p - self.old_log_probability[i].item()), self.advantage[i].item()
            # A sample is constant once its ratio has left the clip in the direction of its advantage.
            if advantage > 0:
                sums["policy_loss"] -= min(ratio, 1.2) * advantage
            else:
                sums["policy_loss"] -= max(ratio, 0.8) * advantage
            error = (value - return_) ** 2
            if value_clip is not None:
                near = old + max(-value_clip, min(value_clip, value - old))
                error = max(error, (near - return_) ** 2)
            sums["value_loss"] += error
            sums["entropy"] += entropy(self.kind, self.parameters[i].tolist())
            sums["approx_kl"] += (ratio - 1) - math.log(ratio)
            sums["clip_fraction"] += not 0.8 <= ratio <= 1.2
        sums["loss"] = sums["policy_loss"] + 0.7 * sums["value_loss"] - 0.03 * sums["entropy"]
        return sums


@pytest.mark.parametrize("value_clip", [None, 0.5])
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_loss_against_plain_loops(kind: str, value_clip: float | None) -> None:
    """PPO's loss, statistics and gradient equal plain loops over the valid samples."""
    batch = Batch(kind, 6, 4)
    expected, numbers = batch.expected(value_clip), [batch.parameters, batch.value]
    slopes = [slope(lambda: batch.expected(value_clip)["loss"], x) for x in numbers]
    for x in numbers:
        x.requires_grad_()
    loss_sum, terms = batch.loss(value_clip)
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(expected, rel=1e-9)
    assert loss_sum.item() == pytest.approx(expected["loss"], rel=1e-9)
    assert 0 < expected["clip_fraction"] < batch.valid.sum()
    loss_sum.backward()
    for x, gradient in zip(numbers, slopes, strict=True):
        torch.testing.assert_close(x.grad, gradient, rtol=1e-6, atol=1e-6)
        assert not x.grad[~batch.valid].any()


def ppo(env: EnvConfig, num_envs: int, horizon: int, steps: int = 10_000, **settings: Any) -> PPO:
    torch.manual_seed(0)
    return PPO(spec_of(env), PPOSettings(**settings), steps, num_envs, horizon)


@pytest.mark.parametrize("core", [{}, CORE], ids=["feedforward", "lstm"])
@pytest.mark.parametrize(("normalize", "reset_mode"), [(False, "immediate"), (True, "wait")])
def test_the_first_minibatch_has_ratio_one(core: dict[str, Any], normalize: bool, reset_mode: str) -> None:
    """Learning starts from the probabilities that acted. In the batch shapes of acting they are the recorded ones
    bit for bit; a minibatch has another shape, so its first ratio is 1 up to rounding."""
    settings = {"clip": 1e-4, "clip_schedule": "constant", "learning_rate": 1e-2, "normalize_observations": normalize}
    algo = ppo(COUNTING, 8, 16, **settings, **core)
    sampler = make(SerialSampler, COUNTING, SamplerConfig(8, 16, 2), algo.policy, reset_mode=reset_mode)
    watched, distribution = RecordingUpdate(algo.policy, Adam()), algo.policy.distribution
    for index in range(2):
        rollout = sampler.collect()
        policy_outputs = rollout.policy_outputs["distribution"]
        for t in range(16):
            for group in (slice(0, 4), slice(4, 8)):
                recurrent_inputs = rollout.recurrent_inputs and type(rollout.recurrent_inputs)(
                    *(x[t, group] for x in rollout.recurrent_inputs)
                )
                seen = rollout.observations(t, t + 1)[0, group]
                with torch.no_grad():
                    now = algo.policy.step(seen, recurrent_inputs)[0]
                assert torch.equal(now, policy_outputs[t, group])
        if index or not normalize:
            watched.calls.clear()
            stats = algo.learn(rollout, watched)
            (_, targets, *_), loss = watched.calls[0].batch, stats["clip_fraction"]
            assert len(loss) == 16 and loss[0] == 0 and 0 <= stats["approx_kl"][0] < 1e-9
            assert stats["approx_kl"][1:].max() > 1e-5
            old = distribution.log_probability(policy_outputs, rollout.action).flatten().sort().values
            assert torch.isin(targets.old_log_probability.flatten(), old).all()
        assert (algo.statistics is not None) == normalize
        if algo.statistics:
            algo.statistics.update(rollout, watched)


def test_observations_at_are_observations() -> None:
    """`observations_at` returns the same stacks as `observations` at any steps and environments."""
    sampler = make(SerialSampler, PONG, SamplerConfig(4, 6, 2), decorrelation_steps=5)
    for _ in range(4):
        rollout = sampler.collect()
        whole = rollout.observations(0, 7)
        steps, envs = torch.randint(7, (50,)), torch.randint(4, (50,))
        assert torch.equal(rollout.observations_at(steps, envs), whole[steps, envs])


def test_learn_agrees_with_the_targets() -> None:
    """Every epoch learns from the same standardized advantages, returns and old values, each sample once."""
    algo = ppo(COUNTING, 4, 6, minibatches=2, epochs=3, normalize_advantage="rollout", value_clip=0.1)
    sampler = make(SerialSampler, COUNTING, SamplerConfig(4, 6, 2), algo.policy, reset_mode="wait")
    sampler.collect()
    rollout, watched = sampler.collect(), RecordingUpdate(algo.policy, Adam())
    reward, done, bootstrap_value = bootstrap(algo.policy, add_final_values(algo.policy, rollout, 0.99), 0.99)
    value = rollout.policy_outputs["value"]
    advantage, return_ = generalized_advantage(reward, value, done, bootstrap_value, 0.99, 0.95)
    valid = advantage[rollout.valid].double()
    advantage = (advantage - valid.mean()) / (valid.std(correction=0) + 1e-6)
    stats = algo.learn(rollout, watched)
    assert len(watched.calls) == 6 and all(len(x) == 6 for x in stats.values())
    for epoch in range(3):
        calls = watched.calls[2 * epoch : 2 * epoch + 2]
        for name, whole in (("advantage", advantage), ("return_", return_), ("old_value", value)):
            expected = whole.flatten().double().sort().values
            found = torch.cat([getattr(call.batch[1], name) for call in calls]).double().sort().values
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        counts = [call.num_samples.item() for call in calls]
        assert counts == [call.batch[0].valid.sum().item() for call in calls]
        assert sum(counts) == rollout.valid.sum() < 24


def test_advantages_of_each_minibatch_are_standardized() -> None:
    """The valid advantages of each minibatch have mean 0 and standard deviation 1."""
    algo = ppo(COUNTING, 4, 6, minibatches=2, epochs=2, normalize_advantage="minibatch")
    sampler = make(SerialSampler, COUNTING, SamplerConfig(4, 6, 2), algo.policy, reset_mode="wait")
    sampler.collect()
    watched = RecordingUpdate(algo.policy, Adam())
    algo.learn(sampler.collect(), watched)
    for call in watched.calls:
        batch, targets = call.batch[:2]
        advantage = targets.advantage[batch.valid].double()
        assert advantage.mean().abs() < 1e-5 and advantage.std(correction=0).item() == pytest.approx(1, abs=1e-3)


def test_advantages_that_are_all_the_same() -> None:
    """Equal advantages are standardized to 0, and a batch without valid samples stays finite."""
    algo = ppo(COUNTING, 4, 6)
    same, valid = torch.full((6, 4), 3.0), torch.ones(6, 4, dtype=torch.bool)
    valid[2:, 1] = False
    same[~valid] = 77.0
    scaled = standardized(same, valid, RecordingUpdate(algo.policy, Adam()))
    assert not scaled[valid].any() and torch.isfinite(scaled).all()
    assert torch.isfinite(standardized(same, torch.zeros_like(valid), RecordingUpdate(algo.policy, Adam()))).all()


@pytest.mark.parametrize(("target_kl", "epochs"), [(1e-9, 1), (None, 5), (1e3, 5)])
def test_target_kl_stops_epochs(target_kl: float | None, epochs: int) -> None:
    """Epochs stop after the first whose mean KL exceeds target_kl, never in the middle of one."""
    algo = ppo(COUNTING, 4, 6, epochs=5, minibatches=3, target_kl=target_kl, learning_rate=1e-2)
    sampler = make(SerialSampler, COUNTING, SamplerConfig(4, 6, 2), algo.policy)
    watched = RecordingUpdate(algo.policy, Adam())
    stats = algo.learn(sampler.collect(), watched)
    assert len(watched.calls) == 3 * epochs
    assert len(watched.maxima) == (0 if target_kl is None else epochs)
    for epoch, kl in enumerate(watched.maxima):
        assert kl == pytest.approx(stats["approx_kl"][3 * epoch : 3 * epoch + 3].mean().item(), rel=1e-5)


def test_the_clip_is_annealed() -> None:
    """Clip, entropy weight and learning rate follow their schedules from rollout to rollout."""
    algo = ppo(COUNTING, 4, 6, steps=96, entropy_schedule="linear:0.5", learning_rate_schedule="linear")
    sampler = make(SerialSampler, COUNTING, SamplerConfig(4, 6, 2), algo.policy)
    watched = RecordingUpdate(algo.policy, Adam())
    for index in range(4):
        watched.calls.clear()
        algo.learn(sampler.collect(), watched)
        share = 1 - index / 4
        for call in watched.calls:
            assert call.batch[2].item() == pytest.approx(0.2 * share)
            assert call.batch[3].item() == pytest.approx(0.01 * (0.5 + 0.5 * share))
            assert call.learning_rate == pytest.approx(7e-4 * share)
        assert algo.learning_rate(index * 24) == pytest.approx(7e-4 * share)


@pytest.mark.parametrize(
    ("horizon", "core", "message"),
    [
        (5, "none", "envs=4 x horizon=5 = 20 samples do not divide into minibatches=3"),
        (6, "gru", "envs=4 sequences do not divide into minibatches=3"),
    ],
)
def test_minibatches_that_do_not_divide(horizon: int, core: str, message: str) -> None:
    """Minibatches that do not divide the samples or sequences evenly are refused."""
    with pytest.raises(UsageError, match=message):
        ppo(COUNTING, 4, horizon, minibatches=3, core=core).validate(RunInfo(40, 4, ("cpu",)))
