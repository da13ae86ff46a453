"""DQN and Categorical DQN: losses against plain arithmetic, targets of hand-made tables, and when what is learned."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import accel_rl
from accel_rl.algos.base import RunInfo
from accel_rl.algos.categorical_dqn import CategoricalDQN, CategoricalDQNSettings, cross_entropy_loss
from accel_rl.algos.dqn import DQN, DQNSettings, huber_loss
from accel_rl.algos.replay_settings import updates_per_rollout
from accel_rl.envs import EnvConfig
from accel_rl.envs.batch_simulator import BatchConfig
from accel_rl.errors import UsageError
from accel_rl.replay.ring import TransitionBatch
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.training import checkpoint
from tests.helpers.losses import slope
from tests.helpers.q_tables import one_hot, play, set_table, table_gradient, table_spec, table_trunk
from tests.helpers.runs import assert_same, rows
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"warmup_steps": 24, "batch_size": 4, "replay_size": 400, "training_intensity": 2.0}


def random_batch(seed: int = 0, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(12, generator=generator) < 0.6
    return valid, torch.rand(12, generator=generator, dtype=torch.float64) + 0.1


# ---- losses ----


def huber(d: float) -> float:
    return d * d / 2 if abs(d) <= 1 else abs(d) - 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_huber_loss_and_gradient(weighted: bool) -> None:
    """Would catch a squared error, an error of another sign, a weight left out, or an invalid sample that counts."""
    valid, weight = random_batch()
    generator = torch.Generator().manual_seed(1)
    value, td_target = 2 * torch.randn(2, 12, generator=generator, dtype=torch.float64)
    td_target[0], td_target[1] = value[0] + 1, value[1] - 1  # where the two forms meet
    importance = weight if weighted else None

    def expected() -> float:
        return sum(
            (weight[i].item() if weighted else 1.0) * huber((td_target[i] - value[i]).item())
            for i in range(12)
            if valid[i]
        )

    total, gradient = expected(), slope(expected, value)
    value.requires_grad_()
    td_target.requires_grad_()
    loss_sum, terms = huber_loss(value, td_target, valid, importance)
    loss_sum.backward()
    assert 0 < valid.sum() < 12 and loss_sum.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(value.grad, gradient, rtol=1e-5, atol=1e-5)
    assert td_target.grad is None and not value.grad[~valid].any()
    assert torch.autograd.gradcheck(lambda v: huber_loss(v, td_target.detach() + 0.01, valid, importance)[0], value)
    error = (td_target - value).detach()
    assert terms["loss"].item() == loss_sum.item()
    assert terms["value"].item() == pytest.approx(value[valid].sum().item())
    assert terms["td_error"].item() == pytest.approx(error[valid].abs().sum().item())
    torch.testing.assert_close(terms["priority"][valid], error[valid].abs().clamp(1e-6, 1))
    assert not any(term.requires_grad for term in terms.values())


@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_loss_and_gradient(weighted: bool) -> None:
    """Would catch the divergence the wrong way round, a weight left out, or an invalid sample that counts."""
    valid, weight = random_batch()
    generator = torch.Generator().manual_seed(1)
    logits, td_target = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
    td_target, support = td_target.softmax(-1), torch.linspace(-1, 3, 5, dtype=torch.float64)
    td_target[:3, :2] = 0
    importance = weight if weighted else None

    def expected() -> float:
        total = 0.0
        for i in range(12):
            if valid[i]:
                weights = [math.exp(x) for x in logits[i].tolist()]
                entropy = -sum(
                    q * math.log(w / sum(weights)) for q, w in zip(td_target[i].tolist(), weights, strict=True)
                )
                total += entropy * (weight[i].item() if weighted else 1.0)
        return total

    total, gradient = expected(), slope(expected, logits)
    logits.requires_grad_()
    td_target.requires_grad_()
    loss_sum, terms = cross_entropy_loss(logits.log_softmax(-1), td_target.detach(), support, valid, importance)
    loss_sum.backward()
    assert loss_sum.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(logits.grad, gradient, rtol=1e-6, atol=1e-6)
    assert not logits.grad[~valid].any()
    p = logits.detach().softmax(-1)
    assert terms["loss"].item() == loss_sum.item()
    assert terms["value"].item() == pytest.approx(sum((p[i] * support).sum().item() for i in range(12) if valid[i]))
    for i in range(12):
        if valid[i]:
            pairs = [(max(a, 1e-6), max(b, 1e-6)) for a, b in zip(td_target[i].tolist(), p[i].tolist(), strict=True)]
            divergence = sum(a * math.log(a / b) for a, b in pairs)
            assert terms["priority"][i].item() == pytest.approx(divergence, rel=1e-9)
    assert terms["divergence"].item() == pytest.approx(terms["priority"][valid].sum().item())
    assert not any(term.requires_grad for term in terms.values())


def test_priorities_are_bounded() -> None:
    """Would catch a priority of 0, which is never drawn again, of infinity, or one below 0 by rounding."""
    certain = torch.tensor([[0.0, -300.0, -300.0]] * 2).log_softmax(-1)
    td_target = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    _, terms = cross_entropy_loss(certain, td_target, torch.arange(3.0), torch.ones(2, dtype=torch.bool))
    assert terms["priority"][0].item() == pytest.approx(math.log(1e6) - 1e-6 * math.log(1e6), rel=1e-4)
    assert terms["priority"][1].item() == pytest.approx(1e-6)
    _, terms = huber_loss(torch.zeros(3), torch.tensor([0.25, -0.5, -40.0]), torch.ones(3, dtype=torch.bool))
    assert terms["priority"].tolist() == [0.25, 0.5, 1.0]


def test_what_is_not_valid_may_hold_anything() -> None:
    """Would catch a lost step whose nan reaches the sum or the gradient: 0 x nan is nan."""
    valid = torch.tensor([True, False, True])
    nan = torch.tensor([0.5, math.nan, 0.5], dtype=torch.float64)
    value = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    loss_sum, terms = huber_loss(value, nan, valid, nan)
    loss_sum.backward()
    assert value.grad.tolist() == [0.25, 0, 0.5]
    assert all(term.isfinite().all() for term in terms.values())
    logits = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    loss_sum, terms = cross_entropy_loss(
        logits.log_softmax(-1), nan[:, None] * torch.ones(2), torch.ones(2, dtype=torch.float64), valid, nan
    )
    loss_sum.backward()
    assert loss_sum.item() == pytest.approx(2 * 0.5 * math.log(2)) and logits.grad.isfinite().all()
    assert all(term.isfinite().all() for term in terms.values())


# ---- targets ----


def make_dqn(num_states: int = 3, num_actions: int = 2, **changes: Any) -> DQN:
    settings = DQNSettings(**{**SMALL, **changes})
    algo = DQN(table_spec(num_states, num_actions), settings, 1000, 2, 4, table_trunk)
    algo.setup(0, RecordingUpdate)
    return algo


def make_categorical(num_states: int, num_actions: int, **changes: Any) -> CategoricalDQN:
    settings = CategoricalDQNSettings(**{**SMALL, **changes})
    algo = CategoricalDQN(table_spec(num_states, num_actions), settings, 1000, 2, 4, table_trunk)
    algo.setup(0, RecordingUpdate)
    return algo


def transitions(
    num_states: int, state: list[int], action: list[int], return_: list[float], after: list[int], bootstrap: list[float]
) -> TransitionBatch:
    return TransitionBatch(
        observation=one_hot(state, num_states),
        action=torch.tensor(action),
        return_=torch.tensor(return_),
        next_observation=one_hot(after, num_states),
        bootstrap=torch.tensor(bootstrap),
        valid=torch.ones(len(state), dtype=torch.bool),
    )


TABLE = [[0.0, 1.0], [5.0, 2.0], [3.0, 4.0]]
TARGET = [[0.5, 0.25], [1.0, 7.0], [8.0, 6.0]]
# In order: one step; three steps; terminated; cut off after two of three steps.
BATCH = transitions(3, [0, 0, 1, 2], [0, 1, 1, 0], [0.1, 0.2, 0.3, 0.4], [1, 2, 2, 1], [0.9, 0.729, 0.0, 0.81])


@pytest.mark.parametrize("double", [False, True])
def test_targets_of_hand_made_tables(double: bool) -> None:
    """Would catch the maximum of the wrong table, an action of one in the row of the other, and a value after the
    end."""
    algo = make_dqn(double=double)
    set_table(algo.policy, TABLE)
    set_table(algo.target, TARGET)
    best = [1.0, 6.0, 6.0, 1.0] if double else [7.0, 8.0, 8.0, 7.0]  # of states 1, 2, 2, 1
    td_targets = [r + d * q for r, d, q in zip([0.1, 0.2, 0.3, 0.4], [0.9, 0.729, 0.0, 0.81], best, strict=True)]
    values = [0.0, 1.0, 2.0, 3.0]
    errors = [td_target - value for td_target, value in zip(td_targets, values, strict=True)]
    loss_sum, terms = algo.loss(BATCH)
    assert loss_sum.item() == pytest.approx(sum(map(huber, errors)), rel=1e-6)
    assert terms["value"].item() == sum(values)
    assert terms["priority"].tolist() == pytest.approx([max(min(abs(e), 1), 1e-6) for e in errors], rel=1e-6)


@pytest.mark.parametrize("double", [False, True])
def test_gradient_by_hand(double: bool) -> None:
    """Would catch a gradient through the target, or one of an action that was not taken: two states, a table."""
    algo = make_dqn(2, 2, double=double)
    set_table(algo.policy, [[0.0, 1.0], [0.5, 0.25]])
    set_table(algo.target, [[0.0, 0.0], [0.2, 0.6]])
    batch = transitions(2, [0, 0, 1], [0, 0, 1], [0.1, 3.0, -1.0], [1, 1, 0], [0.5, 0.5, 0.0])
    batch = batch._replace(importance=torch.tensor([1.0, 0.5, 0.25]))
    algo.loss(batch)[0].backward()
    best = 0.2 if double else 0.6
    errors = [0.1 + 0.5 * best, 3.0 + 0.5 * best, -1.25]
    slopes = [min(max(e, -1), 1) for e in errors]
    expected = [[-slopes[0] - 0.5 * slopes[1], 0.0], [0.0, -0.25 * slopes[2]]]
    assert table_gradient(algo.policy).flatten().tolist() == pytest.approx([x for row in expected for x in row])
    assert all(parameter.grad is None for parameter in algo.target.parameters())


def categorical_target(p: list[float], support: list[float], return_: float, bootstrap: float) -> list[float]:
    """Every atom's mass to every atom, by the triangle around it."""
    distance, td_target = support[1] - support[0], [0.0] * len(support)
    for j, mass in enumerate(p):
        reached = min(max(return_ + bootstrap * support[j], support[0]), support[-1])
        for i, atom in enumerate(support):
            td_target[i] += mass * max(0.0, 1 - abs(reached - atom) / distance)
    return td_target


@pytest.mark.parametrize("double", [False, True])
def test_categorical_targets_of_hand_made_tables(double: bool) -> None:
    """Would catch the distribution of the wrong action or network, and one that is not moved by the return."""
    algo = make_categorical(3, 2, atoms=5, v_min=-2.0, v_max=2.0, double=double)
    support = [-2.0, -1.0, 0.0, 1.0, 2.0]
    generator = torch.Generator().manual_seed(4)
    logits, others = 2 * torch.randn(2, 3, 2, 5, generator=generator)
    set_table(algo.policy, logits)
    set_table(algo.target, others)
    choosers = (logits if double else others).softmax(-1) @ torch.tensor(support)
    best = {s: int(choosers[s].argmax()) for s in range(3)}
    assert any(best[s] != int((others.softmax(-1) @ torch.tensor(support))[s].argmax()) for s in (1, 2)) == double
    expected = 0.0
    log_p = logits.double().log_softmax(-1)
    values = [b.tolist() for b in (BATCH.return_, BATCH.bootstrap)]
    states = zip([0, 0, 1, 2], [0, 1, 1, 0], [1, 2, 2, 1], *values, strict=True)
    for state, action, after, return_, bootstrap in states:
        td_target = categorical_target(
            others[after, best[after]].double().softmax(-1).tolist(), support, return_, bootstrap
        )
        assert sum(td_target) == pytest.approx(1)
        expected -= sum(g * x for g, x in zip(td_target, log_p[state, action].tolist(), strict=True))
    loss_sum, terms = algo.loss(BATCH)
    assert loss_sum.item() == pytest.approx(expected, rel=1e-5)
    loss_sum.backward()
    assert terms["priority"].shape == (4,)
    gradient = table_gradient(algo.policy).view(3, 2, 5)
    taken = {(0, 0), (0, 1), (1, 1), (2, 0)}
    assert {(s, a) for s in range(3) for a in range(2) if gradient[s, a].any()} == taken


def test_categorical_terminal_target_is_the_return() -> None:
    """Would catch mass that is lost where a return is an atom exactly, or beyond the ends. 51 atoms from -10 to 10."""
    algo = make_categorical(3, 2)
    returns = [0.0, 1.0, 12.0, -1.0]
    masses = [{25: 1.0}, {27: 0.5, 28: 0.5}, {50: 1.0}, {22: 0.5, 23: 0.5}]
    logits = torch.randn(3, 2, 51, generator=torch.Generator().manual_seed(0))
    set_table(algo.policy, logits)
    batch = transitions(3, [0, 1, 2, 1], [0, 1, 0, 0], returns, [1, 1, 1, 1], [0.0] * 4)
    log_p = logits.log_softmax(-1)
    rows = [log_p[0, 0], log_p[1, 1], log_p[2, 0], log_p[1, 0]]
    expected = -sum(mass * row[i].item() for row, each in zip(rows, masses, strict=True) for i, mass in each.items())
    assert algo.loss(batch)[0].item() == pytest.approx(expected, rel=1e-4)


def test_returns_outside_of_the_support_are_counted() -> None:
    """Would catch returns that are cut in silence, one that lies on the support's end and counts, an invalid one, or
    the target network's share of a target."""
    algo = make_categorical(3, 2, atoms=5, v_min=-2.0, v_max=2.0)
    returns = [-2.5, -2.0, 0.0, 2.0, 2.25, 30.0, 30.0]
    batch = transitions(3, [0, 1, 2, 1, 0, 0, 0], [0] * 7, returns, [1] * 7, [0.9] * 7)
    batch.valid[5] = False
    assert algo.loss(batch)[1]["return_outside_support"].item() == 3


# ---- how often ----


@pytest.mark.parametrize(
    ("intensity", "num_samples", "batch_size", "updates"),
    [(8, 128, 32, 32), (8, 128, 256, 4), (8, 128, 512, 2), (8, 128, 1024, 1), (8, 256, 2048, 1), (0.1, 30, 1, 3)],
)
def test_updates_per_rollout(intensity: float, num_samples: int, batch_size: int, updates: int) -> None:
    """The paper's numbers, and one that is not exact in binary."""
    assert updates_per_rollout(intensity, num_samples, batch_size) == updates


@pytest.mark.parametrize(
    ("intensity", "num_samples", "batch_size"),
    [(8, 128, 33), (8, 128, 2048), (0.5, 5, 2), (8, 7, 3), (1, 128, 100), (0.3, 128, 32)],
)
def test_numbers_that_do_not_divide(intensity: float, num_samples: int, batch_size: int) -> None:
    """Would catch advice that does not help, and a neighbour that is none."""
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
    for other in intensities:
        assert updates_per_rollout(other, num_samples, batch_size) >= 1
    fitting = [n for n in range(1, 4 * batch_size) if intensity * num_samples % n == 0 and n <= intensity * num_samples]
    nearest = [
        max((n for n in fitting if n < batch_size), default=0),
        min((n for n in fitting if n > batch_size), default=0),
    ]
    assert sizes == [n for n in nearest if n]


COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, 7], "seeded": True})


def make_run(
    algo_class: Any = DQN, horizon: int = 3, num_envs: int = 4, **changes: Any
) -> tuple[Any, SerialSampler, RecordingUpdate]:
    """This learner's 4 environments, of num_envs; learning rates so low that nothing grows."""
    torch.manual_seed(0)
    settings = algo_class.Settings(**{**SMALL, "learning_rate": 1e-4, **changes})
    algo = algo_class(spec_of(COUNTING), settings, 1000, num_envs, horizon, local_envs=4)
    update = RecordingUpdate(algo.policy)
    algo.setup(1, RecordingUpdate)
    return algo, make(SerialSampler, COUNTING, SamplerConfig(4, horizon), algo.policy), update


@pytest.mark.parametrize(
    ("horizon", "warmup", "intensity", "batch_size"),
    [(3, 24, 2.0, 4), (3, 25, 2.0, 4), (3, 36, 0.5, 6), (5, 30, 8.0, 5), (4, 31, 1.0, 16)],
)
def test_the_intensity_is_exact(horizon: int, warmup: int, intensity: float, batch_size: int) -> None:
    """Would catch updates before the warm-up is over, or lost between the steps of a rollout. What a rollout has
    brought is learned from while the next one is sampled: so the last one's share is still due."""
    changes = {"warmup_steps": warmup, "training_intensity": intensity, "batch_size": batch_size}
    algo, sampler, update = make_run(horizon=horizon, **changes)
    stats = play(algo, sampler, update, 12)
    per_rollout = 4 * horizon
    rollouts_before = math.ceil(warmup / per_rollout)
    assert len(update.batches) == intensity * (12 - rollouts_before) * per_rollout / batch_size
    assert {len(batch.action) for batch in update.batches} == {batch_size}
    assert sum(len(each["loss"]) for each in stats) == len(update.batches)
    assert all(each.keys() == {"loss", "value", "td_error", "grad_norm"} for each in stats)


def test_a_loop_without_on_step_learns_as_often() -> None:
    """Would catch updates that are lost, or made twice, where nothing is learned between the steps of a rollout, or
    only between some of them."""
    algo, sampler, update = make_run()  # warm after two rollouts, each of which brings 6 updates
    num_calls = []
    for rollout in range(6):
        algo.before_rollout(12 * rollout)
        on_step = (lambda t: algo.on_step(t, None, update) if t else None) if rollout == 4 else None
        stats = algo.learn(sampler.collect(on_step), update)
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
    """Would catch a schedule that begins only after the warm-up, or actions of a network that has not learned."""
    algo, sampler, update = make_run(horizon=5, warmup_steps=100, epsilon_final=(0.2,), epsilon_steps=400)
    for rollout in range(5):  # 20 steps each
        play(algo, sampler, update, 1, step=20 * rollout)
        assert algo.policy.epsilon == 1.0 and not update.calls
    assert algo.num_stored == 100
    for step, expected in ((100, 0.8), (200, 0.6), (400, 0.2), (900, 0.2)):
        algo.before_rollout(step)
        assert algo.policy.epsilon.tolist() == pytest.approx([expected] * 4)


@pytest.mark.parametrize(
    ("num_envs", "warmup", "rollouts", "updates"),
    [(4, 36, 3, 6), (4, 25, 3, 6), (8, 48, 2, 12), (8, 49, 3, 12), (16, 96, 2, 24)],
)
def test_the_warm_up_counts_stored_steps(num_envs: int, warmup: int, rollouts: int, updates: int) -> None:
    """Would catch a learner of a central store whose warm-up is over by the steps of other learners, though its own
    replay is nearly empty; and learners that update together, but count their own steps alone. 12 steps of a rollout
    are this learner's, as many those of each learner that updates with it; the run's count is four times as fast."""
    algo, sampler, update = make_run(num_envs=num_envs, warmup_steps=warmup, batch_size=8, training_intensity=4.0)
    num_calls = []
    for rollout in range(rollouts + 3):
        play(algo, sampler, update, 1, step=4 * num_envs * 3 * rollout)
        assert (isinstance(algo.policy.epsilon, float) and algo.policy.epsilon == 1.0) == (rollout < rollouts)
        assert algo.num_stored == num_envs * 3 * (rollout + 1)
        num_calls.append(len(update.calls))
    assert num_calls == [max(0, rollout - rollouts + 1) * updates for rollout in range(rollouts + 3)]


def test_a_state_without_local_parts_is_loaded() -> None:
    """Would catch a run that cannot be resumed with another number of learners, and one that acts at random again
    while its replay fills up anew; it learns only then."""
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
    """Would catch an interval in updates or rollouts, and a sync that is late, early or left out."""
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
    """Would catch weights that are not brought to a largest of 1, an exponent that does not rise to 1 on its way, and
    priorities that are those of other samples."""
    changes: dict[str, Any] = {"priority_alpha": 0.7, "priority_beta": 0.4, "priority_beta_steps": 200}
    algo, sampler, update = make_run(prioritized=True, new_priority=0.5, batch_size=6, **changes)
    play(algo, sampler, update, 8)
    stored = torch.arange(len(algo.replay.priorities.tree[:]))
    algo.replay.update_priorities(stored, torch.rand(len(stored)))
    for step, beta in ((0, 0.4), (100, 0.7), (200, 1.0), (500, 1.0)):
        algo.before_rollout(step)
        leaves = algo.replay.priorities.tree[:].clone()
        assert len(leaves.unique()) > 10
        state = algo.replay.generator.get_state()
        algo.learn_batch(update)
        algo.replay.generator.set_state(state)
        weight = update.batches[-1].importance
        assert weight.max().item() == 1 and weight.dtype == torch.float32
        changed = (algo.replay.priorities.tree[:] != leaves).nonzero().squeeze(1)
        tree = type(algo.replay.priorities.tree)(len(leaves))
        tree.update(torch.arange(len(leaves)), leaves)
        drawn, _ = tree.sample(6, algo.replay.generator)
        assert set(changed.tolist()) <= set(drawn.tolist())
        expected = (1 / leaves[drawn]) ** beta
        torch.testing.assert_close(weight.double(), expected / expected.max(), rtol=1e-5, atol=1e-6)
        batch = algo.replay.batch(drawn, CPU)
        for name in set(TransitionBatch._fields) - {"importance"}:
            assert torch.equal(getattr(batch, name), getattr(update.batches[-1], name)), name


def test_networks_compute_in_the_same_precision() -> None:
    """Would catch a target network that stays in float32 until it is synced."""
    torch.manual_seed(0)
    settings = DQNSettings(**SMALL, secondary_batch_size=4)
    algo = DQN(spec_of(COUNTING), settings, 1000, 4, 3)
    algo.policy.bf16 = True
    algo.setup(1, RecordingUpdate)
    assert algo.target.bf16 and algo.secondary and algo.secondary.network.bf16 and algo.secondary.target.bf16


# ---- the second network ----


@pytest.mark.parametrize("batch_size", [2, 4, 6, 20])
def test_the_second_network_learns_from_as_many_samples(batch_size: int) -> None:
    """Would catch another start, another number of samples, a target that stays, and statistics that are lost."""
    algo, sampler, update = make_run(secondary_batch_size=batch_size, secondary_learning_rate=3e-4, horizon=6)
    second = algo.secondary
    assert_same(second.network.state_dict(), algo.policy.state_dict())
    own = second.update
    stats = play(algo, sampler, update, 9)
    learned = sum(len(batch.action) for batch in update.batches)
    assert learned == 2 * 24 * 8
    assert {len(batch.action) for batch in own.batches} == {batch_size}
    assert 0 <= learned - batch_size * len(own.batches) < batch_size
    assert not torch.equal(own.parameters.values, update.parameters.values)
    assert all(value.isfinite().all() for each in stats for value in each.values())
    assert sum(len(each.get("secondary_loss", ())) for each in stats) == min(len(own.batches), len(update.batches))
    for each, network, target in ((update, algo.policy, algo.target), (own, second.network, second.target)):
        each.sync_target(target, 10**6)
        assert_same(target.state_dict(), network.state_dict())


RUN: dict[str, Any] = {
    "n_step": 1,
    **SMALL,
    "algo": "dqn",
    "env": "CartPole-v1",
    "device": "cpu",
    "envs": 4,
    "horizon": 4,
    "steps": 160,
    "sampler": "serial",
    "target_interval_steps": 32,
    "log_interval_steps": 32,
    "eval_interval_steps": 80,
    "eval_episodes": 2,
    "tensorboard": False,
    "sampling_threads": 1,
    "learning_threads": 1,
    "decorrelation_steps": 4,
}


def test_a_second_network_does_not_change_the_first(tmp_path: Path) -> None:
    """Would catch a generator that both draw from: the run would be another one. Its scores are columns of their
    own."""
    plain = accel_rl.train(**RUN, out=tmp_path / "plain")
    both = accel_rl.train(**RUN, secondary_batch_size=8, out=tmp_path / "both")
    first, second = (checkpoint.load(run / "checkpoint.pt") for run in (plain, both))
    assert_same(first["policy"], second["policy"])
    assert_same(first["update"], second["update"])
    columns = rows(plain)[0].keys()
    for row, same in zip(rows(plain), rows(both), strict=True):
        assert {k: v for k, v in row.items() if not k.startswith("time/")} == {
            k: same[k] for k in columns if not k.startswith("time/")
        }
    more = rows(both)[0].keys() - columns
    assert {"eval_secondary/mean_reward", "eval_secondary/episodes", "train/secondary_loss"} <= more
    assert {name.split("/")[0] for name in more} == {"eval_secondary", "train"}
    scores = [row["eval_secondary/mean_reward"] for row in rows(both)]
    assert sum(score != "" for score in scores) == 2
    own = second["learners"][0]["algo"]["secondary"]
    assert not torch.equal(second["policy"]["head.output.weight"], own["target"]["head.output.weight"])


def test_a_second_network_sets_no_priorities() -> None:
    with pytest.raises(UsageError, match="both networks would set the priorities"):
        make_dqn(prioritized=True, secondary_batch_size=8).validate(RunInfo(steps=1000))


@pytest.mark.gpu
@pytest.mark.parametrize("prioritized", [False, True])
def test_an_update_does_not_wait_for_the_gpu(prioritized: bool) -> None:
    """Would catch a value that is looked at between two updates, of a network and a replay on the same GPU."""
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
