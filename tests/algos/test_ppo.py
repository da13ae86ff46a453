"""PPO's minibatches, epochs and settings on real rollouts."""

from typing import Any

import pytest
import torch

from accel_rl.algos.base import RunInfo
from accel_rl.algos.batches import add_final_values, bootstrap
from accel_rl.algos.ppo import PPO, PPOSettings, standardized
from accel_rl.algos.returns import generalized_advantage
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.updates.optimizers import Adam
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate

PONG = EnvConfig("pong", options={"max_episode_steps": 7, "noop_max": 3})
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})
CORE = {"core": "lstm", "core_size": 8, "previous_inputs": True}


def ppo(env: EnvConfig, num_envs: int, horizon: int, steps: int = 10_000, **settings: Any) -> PPO:
    torch.manual_seed(0)
    return PPO(spec_of(env), PPOSettings(**settings), steps, num_envs, horizon)


@pytest.mark.parametrize("core", [{}, CORE], ids=["feedforward", "lstm"])
@pytest.mark.parametrize(("normalize", "reset_mode"), [(False, "immediate"), (True, "wait")])
def test_the_first_minibatch_has_ratio_one(core: dict[str, Any], normalize: bool, reset_mode: str) -> None:
    """Learning starts from the acting probabilities. In the batch shapes of acting, they are the recorded ones
    bit for bit. A minibatch has another shape, so the first ratio is 1 up to rounding."""
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


@pytest.mark.parametrize("weight", [0.01, 0.0])
def test_a_bonus_has_a_gradient(weight: float) -> None:
    """The entropy has a gradient only if it has a weight; otherwise it is computed for the log alone."""
    algo = ppo(COUNTING, 4, 4, entropy_weight=weight)
    rollout = make(SerialSampler, COUNTING, SamplerConfig(4, 4, 2), algo.policy).collect()
    outputs = algo.evaluate(rollout.samples())
    assert outputs.entropy.requires_grad == (weight > 0) and outputs.log_probability.requires_grad


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
