"""Rollouts merged from segments: learning from them equals learning from each segment alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C
from accel_rl.algos.base import RunInfo
from accel_rl.algos.batches import random_orders
from accel_rl.algos.ga3c import GA3C
from accel_rl.algos.ppo import PPO
from accel_rl.algos.vtrace import VTrace
from accel_rl.errors import UsageError
from accel_rl.models.normalize import RunningMoments
from accel_rl.rollout import Rollout
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD, RMSProp
from accel_rl.updates.trees import map_leaves
from tests.helpers.random_rollouts import FRAMES, VECTORS
from tests.helpers.segments import ALL_KINDS, HORIZON, Segment, alone, merged
from tests.helpers.updates import RecordingUpdate

NUM_SEGMENTS = len(ALL_KINDS)
WHOLE = {"epochs": 1, "minibatches": 1}  # PPO's minibatch is the rollout
CORE = {"core": "lstm", "core_size": 8, "previous_inputs": True}
ALGOS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a2c": (A2C, {}),
    "a2c, gae": (A2C, {"gae_lambda": 0.9}),
    "ga3c": (GA3C, {}),
    "a2c, core": (A2C, CORE),
    "ppo": (PPO, WHOLE),
    "ppo, core": (PPO, {**WHOLE, **CORE}),
    "vtrace": (VTrace, {}),
    "vtrace, core": (VTrace, CORE),
}


def make(name: str, spec: Any = VECTORS, from_segments: bool = True, **changes: Any) -> Any:
    algo_class, settings = ALGOS[name]
    torch.manual_seed(0)
    settings = algo_class.Settings(discount=0.9, **{**settings, **changes})
    algo = algo_class(spec, settings, 1000, 3, HORIZON, learns_from_segments=from_segments)
    with torch.no_grad():  # otherwise all actions would be about equally likely, and all values about 0
        for parameter in algo.policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    algo.setup(0, RecordingUpdate)
    return algo


def loss_and_gradient(algo: Any, rollout: Rollout) -> tuple[float, Tensor, float]:
    """Returns the sum of the loss over the rollout's samples, its gradient, and the number of samples."""
    update = RecordingUpdate(algo.policy, learns=False)
    if isinstance(algo, VTrace) and not algo.learns_from_segments:
        algo.before_rollout(0)
        algo.on_step(0, rollout, update)
    else:
        algo.learn(rollout, update)
    (call,) = update.calls
    update.parameters.zero_gradient()
    loss_sum, terms = call.loss(*call.batch)
    loss_sum.backward()  # type: ignore[no-untyped-call]
    num_samples = terms.get("num_samples", call.num_samples).item()
    return loss_sum.item(), update.parameters.gradient.clone(), num_samples


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", ALGOS)
def test_a_merged_rollout_is_its_segments(name: str, is_padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged rollout's loss and gradient are the sums over its segments, whatever its padding holds."""
    if is_padded:
        monkeypatch.setattr(Rollout, "without_padding", lambda rollout: rollout)
    algo, single = make(name), make(name, from_segments=False)
    rollout = merged(VECTORS, algo.policy, NUM_SEGMENTS + 3)
    loss_sum, gradient, num_samples = loss_and_gradient(algo, rollout)
    clean = merged(VECTORS, algo.policy, NUM_SEGMENTS, garbage=None)
    each = [loss_and_gradient(single, alone(clean, column)) for column in range(NUM_SEGMENTS)]
    assert num_samples == sum(num for _, _, num in each) == 25
    assert loss_sum == pytest.approx(sum(loss for loss, _, _ in each), rel=1e-4)
    torch.testing.assert_close(gradient, sum(part for _, part, _ in each), rtol=1e-3, atol=1e-4)
    assert gradient.abs().max() > 0.1


@pytest.mark.parametrize("name", ALGOS)
def test_padding_changes_nothing(name: str) -> None:
    """Updates on a CPU are equal bit for bit, whatever the amount and content of the padding."""
    values = []
    for num_columns, garbage in ((NUM_SEGMENTS, 1e6), (NUM_SEGMENTS + 4, 1e6), (NUM_SEGMENTS + 4, 1e12)):
        algo = make(name)
        update = Update(algo.policy, SGD(), clip_grad_norm=0.5)
        for seed in range(3):
            torch.manual_seed(seed)
            algo.learn(merged(VECTORS, algo.policy, num_columns, seed, garbage=garbage), update)
        values.append(update.parameters.values.clone())
        assert values[-1].isfinite().all()
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])


@pytest.mark.parametrize("is_young", [False, True])
@pytest.mark.parametrize("name", ["a2c", "ppo", "vtrace"])
def test_frames_without_padding(name: str, is_young: bool) -> None:
    """Frame stacks of a padded rollout give the losses of its segments; is_young: some frames are blank."""
    algo, single = make(name, FRAMES), make(name, FRAMES, from_segments=False)
    min_age = 0 if is_young else 3
    clean, rollout = (
        merged(FRAMES, algo.policy, NUM_SEGMENTS + 3, garbage=garbage, min_age=min_age) for garbage in (None, 1e6)
    )
    expected = sum(loss_and_gradient(single, alone(clean, column))[0] for column in range(NUM_SEGMENTS))
    assert loss_and_gradient(algo, rollout)[0] == pytest.approx(expected, rel=1e-4)


def test_padding_is_cut_off_without_copies() -> None:
    """`without_padding` narrows a padded rollout to a view and returns any other rollout itself."""
    rollout = merged(VECTORS, make("a2c").policy, NUM_SEGMENTS + 3)
    narrow = rollout.without_padding()
    assert narrow.num_envs == NUM_SEGMENTS == narrow.num_segments and narrow.num_steps == rollout.num_steps == 25
    assert narrow.observation_rows.data_ptr() == rollout.observation_rows.data_ptr()
    ordinary = alone(rollout, 0)
    assert ordinary.without_padding() is ordinary and narrow.without_padding() is narrow


@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize("name", ["a2c", "ga3c", "a2c, core", "ppo", "vtrace"])
def test_graphs_learn_from_segments(name: str) -> None:
    """Graphs learn the same as eager updates while the number, length and end of segments vary."""
    algos = [make(name), make(name)]
    algos[1].policy.to("cuda:0")
    updates = [Update(algo.policy, RMSProp(), 0.5) for algo in algos]
    for seed in range(6):
        segments = tuple(
            Segment(HORIZON, "cut") if (seed + column) % 3 else ALL_KINDS[(seed + column) % NUM_SEGMENTS]
            for column in range(3 + seed % 3)
        )
        rollout = merged(VECTORS, algos[0].policy, NUM_SEGMENTS, seed, segments)
        for algo, update in zip(algos, updates, strict=True):
            torch.manual_seed(seed)
            tensors = map_leaves(lambda leaf, device=update.device: leaf.to(device), rollout.tensors())
            algo.learn(replace(rollout, **tensors), update)
    torch.testing.assert_close(updates[1].parameters.values.cpu(), updates[0].parameters.values, rtol=1e-3, atol=1e-4)
    graphs = updates[1]._graphs
    assert graphs and graphs.is_enabled and not graphs._not_capturable
    assert len(graphs._calls) <= 3, "each number of segments has graphs of its own"


def test_observations_are_normalized_by_valid_steps() -> None:
    """The moments of observations count valid steps only."""
    algo = make("a2c", normalize_observations=True)
    rollout = merged(VECTORS, algo.policy, NUM_SEGMENTS + 2)
    algo.statistics.update(rollout, Update(algo.policy, SGD()))
    moments: RunningMoments = algo.policy.norm.moments
    seen = rollout.observations(0, HORIZON)[rollout.valid].double()
    assert moments.count.item() == 25
    torch.testing.assert_close(moments.mean, seen.mean(0))
    torch.testing.assert_close(moments.variance, seen.var(0, correction=0))


@pytest.mark.parametrize("name", ["ppo", "ppo, core"])
@pytest.mark.parametrize("count", [3, 5])
def test_minibatches_of_any_number_of_samples(name: str, count: int) -> None:
    """Each epoch learns from every valid sample exactly once, for any number of minibatches."""
    algo = make(name, epochs=2, minibatches=count)
    rollout = merged(VECTORS, algo.policy, NUM_SEGMENTS + 3)
    update = RecordingUpdate(algo.policy)
    algo.learn(rollout, update)
    assert len(update.calls) == 2 * count if name == "ppo" else len(update.calls) > count
    assert sum(call.num_samples.item() for call in update.calls) == 2 * 25
    epochs = [update.calls[: len(update.calls) // 2], update.calls[len(update.calls) // 2 :]]
    rewards = [sorted(torch.cat([call.batch[1].return_.flatten() for call in epoch]).tolist()) for epoch in epochs]
    assert rewards[0] == rewards[1]


@pytest.mark.parametrize("name", ["ppo", "ppo, core"])
def test_padding_is_spread_over_minibatches(name: str) -> None:
    """Random orders hold every sample once and spread the padding evenly over the minibatches."""
    rollout = merged(VECTORS, make(name).policy, 2 * NUM_SEGMENTS)
    orders = random_orders(rollout, 3)
    for order in orders:
        assert sorted(order.tolist()) == list(range(orders.shape[1]))
        counts = [int((part % (2 * NUM_SEGMENTS) < NUM_SEGMENTS).sum()) for part in order.chunk(3)]
        assert max(counts) - min(counts) <= 1 and sum(counts) == orders.shape[1] // 2
    assert not torch.equal(orders[0], orders[1])
    torch.manual_seed(5)
    expected = torch.randperm(orders.shape[1] // 2)
    torch.manual_seed(5)
    assert torch.equal(random_orders(rollout.without_padding(), 1)[0], expected)


def test_vtrace_learns_at_the_end_of_a_rollout() -> None:
    """With segments, V-trace learns at the end of a rollout and ignores the multi-batch settings."""
    algo = make("vtrace", batches=7, batch_steps=50)
    assert (algo.window, algo.learns_on_step) == (None, False)
    algo.validate(RunInfo(100, 4, ("cpu",)))
    ordinary = make("vtrace", batches=7, batch_steps=50, from_segments=False)
    assert (ordinary.window.steps, ordinary.learns_on_step) == (50, True)
    with pytest.raises(UsageError, match="do not divide into batches=7"):
        ordinary.validate(RunInfo(100, 4, ("cpu",)))
    with pytest.raises(UsageError, match="at most rho_bar"):
        make("vtrace", c_bar=2.0).validate(RunInfo(100, 4, ("cpu",)))
