"""DQN: when and how often it learns, explores and syncs its target, and how samples are drawn and weighted."""

import math
import re
from copy import copy, deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from accel_rl.algos.dqn import DQN, DQNSettings
from accel_rl.algos.replay_settings import updates_per_rollout
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.trunks import NETWORKS
from accel_rl.replay.transitions import TransitionBatch
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.algos.q_tables import play
from tests.helpers.dqn import COUNTING, SMALL, make_run
from tests.helpers.runs import assert_same
from tests.helpers.samplers import spec_of
from tests.helpers.updates import RecordingUpdate

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("intensity", "num_samples", "batch_size", "updates"),
    [(8, 128, 32, 32), (8, 128, 256, 4), (8, 128, 512, 2), (8, 128, 1024, 1), (8, 256, 2048, 1), (0.1, 30, 1, 3)],
)
def test_updates_per_rollout(intensity: float, num_samples: int, batch_size: int, updates: int) -> None:
    """The updates per rollout are the paper's, and exact even for an intensity that floats only approximate."""
    assert updates_per_rollout(intensity, num_samples, batch_size) == updates


@pytest.mark.parametrize(
    ("intensity", "num_samples", "batch_size"),
    [(8, 128, 33), (8, 128, 2048), (0.5, 5, 2), (8, 7, 3), (1, 128, 100), (0.3, 128, 32)],
)
def test_numbers_that_do_not_divide(intensity: float, num_samples: int, batch_size: int) -> None:
    """A batch size that does not divide is refused with the nearest batch sizes and intensities that do."""
    with pytest.raises(UsageError) as error:
        updates_per_rollout(intensity, num_samples, batch_size)
    text = str(error.value)
    assert f"batch_size={batch_size} = {intensity * num_samples / batch_size:g} updates must be a whole number" in text
    advice = text.split(": use ")[1]
    sizes = [float(x) for x in re.findall(r"[\d.]+", (re.findall("batch_size=([^,]*)", advice) or [""])[0])]
    intensities = [float(x) for x in re.findall(r"[\d.e-]+", advice.split("training_intensity=")[1])]
    assert intensities and (sizes or intensity * num_samples % 1)
    for size in sizes:
        assert updates_per_rollout(intensity, num_samples, int(size)) >= 1
        between = range(*sorted((batch_size, int(size))))
        assert not any(intensity * num_samples % n == 0 for n in between if n not in (batch_size, size)), "not nearest"
    for other in intensities:
        assert updates_per_rollout(other, num_samples, batch_size) >= 1


@pytest.mark.parametrize(
    ("horizon", "warmup", "intensity", "batch_size"),
    [(3, 25, 2.0, 4), (3, 36, 0.5, 6), (5, 30, 4.0, 5), (4, 31, 1.0, 16)],
)
def test_the_intensity_is_exact(horizon: int, warmup: int, intensity: float, batch_size: int) -> None:
    """After the warm-up, the number of updates matches the training intensity exactly. A rollout's updates are
    made while the next one is sampled, so the last rollout's are still due."""
    changes = {"warmup_steps": warmup, "training_intensity": intensity, "batch_size": batch_size}
    algo, sampler, update = make_run(horizon=horizon, **changes)
    assert algo.learns_on_step
    stats = play(algo, sampler, update, 7)
    per_rollout = 4 * horizon
    rollouts_before = math.ceil(warmup / per_rollout)
    assert len(update.batches) == intensity * (7 - rollouts_before) * per_rollout / batch_size
    assert {len(batch.action) for batch in update.batches} == {batch_size}
    assert sum(len(each["loss"]) for each in stats) == len(update.batches)
    assert all(each.keys() == {"loss", "value", "td_error", "grad_norm"} for each in stats)


def test_returns_are_scaled_as_they_are_drawn() -> None:
    """The replay stores unscaled rewards; a drawn batch divides them by the current scale of returns."""
    algo, sampler, update = make_run(normalize_returns=True, discount=0.5)
    returns, running = [], np.zeros(4)
    for _ in range(5):
        algo.before_rollout(0)
        rollout = sampler.collect()
        algo.learn(algo.statistics.normalize(rollout), update)
        algo.statistics.update(rollout, update)
        for reward, done in zip(rollout.reward.numpy(), rollout.done.numpy(), strict=True):
            running = 0.5 * running + reward
            returns += [*running]
            running = running * ~done
    index, batch, _ = algo.draw_batch(update, algo.replay.draw_noise(6), algo.replay.ring.rows, torch.tensor(0.4))
    reward = algo.replay.ring.gather(index).return_
    assert set(reward.tolist()) <= {10.0 * action + step for action in (0, 1) for step in range(1, 8)}
    torch.testing.assert_close(batch.return_, reward / float(np.std(returns)))


def test_a_loop_without_on_step_learns_as_often() -> None:
    """`learn` makes the updates that `on_step` has not made, even after a resume."""
    algo, sampler, update = make_run()  # warm after two rollouts of 6 updates each
    num_calls = []
    for rollout in range(6):
        algo.before_rollout(12 * rollout)
        on_step = (lambda t: algo.on_step(t, None, update) if t else None) if rollout == 4 else None
        stats = algo.learn(sampler.collect(StepHook(on_step)), update)
        assert len(stats.get("loss", ())) == (2 if rollout == 4 else 6 * (rollout > 1))
        num_calls.append(len(update.calls))
    assert num_calls == [0, 0, 6, 12, 18, 24]
    state = algo.state_dict()
    resumed, sampler, update = make_run()
    resumed.load_state_dict(state)
    resumed.replay.load_state_dict(algo.replay.state_dict())
    play(resumed, sampler, update, 1, step=72)
    assert len(update.calls) == 6


def test_random_until_warm_then_by_schedule() -> None:
    """Actions are random until the warm-up ends; then epsilon follows the schedule counted from step 0."""
    algo, sampler, update = make_run(horizon=5, warmup_steps=100, epsilon_final=(0.2,), epsilon_steps=400)
    for rollout in range(5):  # 20 steps each
        play(algo, sampler, update, 1, step=20 * rollout)
        assert algo.policy.epsilon == 1.0 and not update.calls
    assert algo.num_stored == 100
    for step, expected in ((100, 0.8), (200, 0.6), (400, 0.2), (900, 0.2)):
        algo.before_rollout(step)
        assert algo.policy.epsilon.tolist() == pytest.approx([expected] * 4)


@pytest.mark.parametrize(
    ("num_envs", "warmup", "rollouts", "updates"), [(4, 25, 3, 6), (8, 48, 2, 12), (8, 49, 3, 12), (16, 96, 2, 24)]
)
def test_the_warm_up_counts_stored_steps(num_envs: int, warmup: int, rollouts: int, updates: int) -> None:
    """The warm-up counts the steps that the learner has stored, for any number of environments."""
    algo, sampler, update = make_run(num_envs=num_envs, warmup_steps=warmup, batch_size=8, training_intensity=4.0)
    num_calls = []
    for rollout in range(rollouts + 3):
        play(algo, sampler, update, 1, step=4 * num_envs * 3 * rollout)
        assert (isinstance(algo.policy.epsilon, float) and algo.policy.epsilon == 1.0) == (rollout < rollouts)
        assert algo.num_stored == num_envs * 3 * (rollout + 1)
        num_calls.append(len(update.calls))
    assert num_calls == [max(0, rollout - rollouts + 1) * updates for rollout in range(rollouts + 3)]


def test_a_state_without_local_parts_is_loaded() -> None:
    """A state without local parts restores the target and the schedule; learning waits for the replay to fill."""
    changes: dict[str, Any] = {"epsilon_final": (0.1, 0.01, 0.5), "epsilon_steps": 100}
    algo, sampler, update = make_run(**changes)
    play(algo, sampler, update, 4)
    state = algo.state_dict()
    assert torch.equal(state.pop("local")["exploration"]["final"], algo.exploration.final)
    other, other_sampler, other_update = make_run(**changes)
    with torch.no_grad():
        for parameter in other.target.parameters():
            parameter.zero_()
    final = other.exploration.final.clone()
    other.load_state_dict(state)
    assert_same(other.target.state_dict(), algo.target.state_dict())
    assert torch.equal(other.exploration.final, final)
    for rollout in range(3):
        play(other, other_sampler, other_update, 1, step=1000)
        assert torch.equal(other.policy.epsilon, other.exploration.at(1000))
        assert bool(other_update.calls) == (rollout == 2)


def test_the_target_is_synced_when_a_multiple_is_crossed() -> None:
    """The target network is synced after each rollout that crosses a multiple of the interval."""
    algo, sampler, update = make_run(target_interval_steps=30, warmup_steps=400)
    parameters = list(zip(algo.policy.parameters(), algo.target.parameters(), strict=True))
    synced = []
    for rollout in range(10):  # 12 steps each
        with torch.no_grad():
            for mine, _ in parameters:
                mine.add_(1)
        play(algo, sampler, update, 1, step=12 * rollout)
        synced.append(all(torch.equal(mine, target) for mine, target in parameters))
    assert [12 * (k + 1) for k in range(10) if synced[k]] == [36, 60, 96, 120]


def test_weights_of_what_is_drawn_by_priority() -> None:
    """The largest importance weight is 1, the exponent rises to 1, and each drawn sample gets its new priority."""
    changes: dict[str, Any] = {"priority_alpha": 0.7, "priority_beta": 0.4, "priority_beta_steps": 200}
    algo, sampler, update = make_run(prioritized=True, new_priority=0.5, batch_size=6, **changes)
    play(algo, sampler, update, 8)
    algo.replay.ring.return_.mul_(0.05)  # otherwise all errors would be clipped at 1
    stored = torch.arange(len(algo.replay.priorities.tree[:]))
    algo.replay.update_priorities(stored, torch.rand(len(stored)))
    for step, beta in ((0, 0.4), (100, 0.7), (200, 1.0), (500, 1.0)):
        algo.before_rollout(step)
        leaves = algo.replay.priorities.tree[:].clone()
        assert len(leaves.unique()) > 10
        state, before = algo.replay.generator.get_state(), copy(algo)
        before.policy = deepcopy(algo.policy)
        algo.learn_batch(update)
        algo.replay.generator.set_state(state)
        weight = update.batches[-1].importance
        assert weight.max().item() == 1 and weight.dtype == torch.float32
        changed = (algo.replay.priorities.tree[:] != leaves).nonzero().squeeze(1)
        tree = type(algo.replay.priorities.tree)(len(leaves))
        tree.update(torch.arange(len(leaves)), leaves)
        drawn, _ = tree.choose(algo.replay.draw_noise(6))
        assert set(changed.tolist()) <= set(drawn.tolist())
        priority = before.loss(update.batches[-1])[1]["priority"].double() ** 0.7
        assert len(priority.unique()) > 2
        largest = [priority[drawn == index].max() for index in drawn]
        torch.testing.assert_close(algo.replay.priorities.tree[drawn], torch.stack(largest))
        expected = (1 / leaves[drawn]) ** beta
        torch.testing.assert_close(weight.double(), expected / expected.max(), rtol=1e-5, atol=1e-6)
        batch = algo.replay.batch(drawn, CPU)
        for name in set(TransitionBatch._fields) - {"importance"}:
            assert torch.equal(getattr(batch, name), getattr(update.batches[-1], name)), name


def test_both_networks_subtract_the_background() -> None:
    """The first rollout's background changes the target's values like the policy's, also in a resumed run."""
    pictures = EnvSpec(gymnasium.spaces.Box(0, 255, (84, 84), np.uint8), gymnasium.spaces.Discrete(2), 2)
    settings = DQNSettings(**SMALL | {"normalize_observations": True})
    images, valid = torch.randint(256, (8, 2, 84, 84), dtype=torch.uint8), torch.ones(8, dtype=torch.bool)
    images[:, :, 20:50] = 87

    def make() -> DQN:
        algo = DQN(pictures, settings, 1000, 4, 3, NETWORKS["nature_half"])
        algo.setup(1, RecordingUpdate)
        return algo

    algo, resumed = make(), make()
    before = algo.policy(images)
    assert algo.statistics is not None
    algo.statistics.observation_norm.update(images, lambda frequency: frequency, valid)
    assert algo.policy.norm.moments.value == 87 and not torch.equal(algo.policy(images), before)
    resumed.policy.load_state_dict(algo.policy.state_dict())
    resumed.load_state_dict(algo.state_dict())
    for network in (algo.target, resumed.policy, resumed.target):
        assert torch.equal(network(images), algo.policy(images))
    with pytest.raises(UsageError, match="does not normalize vectors"):
        DQN(spec_of(COUNTING), settings, 1000, 4, 3)


def test_networks_compute_in_the_same_precision() -> None:
    """A target network computes in bfloat16 if the policy does."""
    torch.manual_seed(0)
    algo = DQN(spec_of(COUNTING), DQNSettings(**SMALL), 1000, 4, 3)
    algo.policy.bf16 = True
    algo.setup(1, RecordingUpdate)
    assert algo.target.bf16


@pytest.mark.gpu
@pytest.mark.parametrize("prioritized", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_update_does_not_wait_for_the_gpu(prioritized: bool) -> None:
    """An update never waits for a GPU that holds both the network and the replay."""
    device = torch.device("cuda:0")
    algo = DQN(spec_of(COUNTING), DQNSettings(**SMALL, prioritized=prioritized, double=True), 1000, 4, 3)
    algo.policy.to(device)
    update = RecordingUpdate(algo.policy)
    algo.setup(1, RecordingUpdate)
    sampler = SerialSampler(spec_of(COUNTING), BatchConfig(COUNTING, seed=3), algo.policy, SamplerConfig(4, 3), device)
    play(algo, sampler, update, 4)
    assert algo.replay is not None
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            algo.learn_batch(update)
    finally:
        torch.cuda.set_sync_debug_mode("default")
