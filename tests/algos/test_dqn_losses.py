"""The losses of the Q-learning family against plain arithmetic, and their targets from hand-made tables."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.categorical_dqn import CategoricalDQN, cross_entropy_loss
from accel_rl.algos.dqn import DQN, huber_loss
from accel_rl.algos.q_base import squared_loss
from accel_rl.algos.qr_dqn import QRDQN, quantile_huber_loss
from accel_rl.replay.transitions import TransitionBatch
from tests.algos.q_tables import one_hot, set_table, table_gradient, table_spec, table_trunk
from tests.helpers.dqn import SMALL
from tests.helpers.updates import RecordingUpdate

# ---- losses ----

SUPPORT = torch.linspace(-1, 3, 5, dtype=torch.float64)


def huber(d: Any) -> Any:
    return d * d / 2 if abs(d) <= 1 else abs(d) - 0.5


def quantile_loss(quantiles: Any, td_target: Any) -> Any:
    """Computes the loss of one sample by two loops."""
    K, total = len(quantiles), 0.0
    for i, quantile in enumerate(quantiles):
        tau = (2 * (i + 1) - 1) / (2 * K)
        for reached in td_target:
            u = reached - quantile
            total += abs(tau - float(u < 0)) * huber(u) / K
    return total


def cross_entropy(logits: Tensor, td_target: Tensor, valid: Tensor, *weight: Tensor) -> Any:
    return cross_entropy_loss(logits.log_softmax(-1), td_target, SUPPORT, valid, *weight)


def divergence(td_target: Tensor, p: Tensor) -> float:
    pairs = [(max(a, 1e-6), max(b, 1e-6)) for a, b in zip(td_target.tolist(), p.tolist(), strict=True)]
    return sum(a * math.log(a / b) for a, b in pairs)


# A loss, the same loss for one sample, and the shape of a sample's values.
Q_LOSSES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "huber": (huber_loss, lambda value, td_target: huber(td_target - value), ()),
    "quantile": (quantile_huber_loss, quantile_loss, (5,)),
    "squared": (squared_loss, lambda value, td_target: (td_target - value) ** 2, ()),
    "half": (partial(squared_loss, weight=0.5), lambda value, td_target: (td_target - value) ** 2 / 2, ()),
    "cross-entropy": (cross_entropy, lambda logits, p: -sum(p * (logits.exp() / logits.exp().sum()).log()), (5,)),
}
IS_WEIGHTED = ("huber", "quantile", "cross-entropy")


@pytest.mark.parametrize(
    ("name", "weighted"), [*((name, False) for name in Q_LOSSES), *((name, True) for name in IS_WEIGHTED)]
)
def test_loss_and_gradient(name: str, weighted: bool) -> None:
    """Each loss and its gradient equal plain arithmetic over the valid samples; nan in invalid ones reaches neither."""
    loss, of_sample, shape = Q_LOSSES[name]
    generator = torch.Generator().manual_seed(0)
    valid = torch.rand(12, generator=generator) < 0.6
    weight = torch.rand(12, generator=generator, dtype=torch.float64) + 0.1
    value, td_target = 2 * torch.randn(2, 12, *shape, generator=generator, dtype=torch.float64)
    if name == "cross-entropy":
        td_target[:3, :2] = -torch.inf  # a probability of 0
        td_target = td_target.softmax(-1)
    else:
        td_target[0], td_target[1] = value[0] + 1, value[1] - 1  # where the two forms of Huber's loss meet
    td_target[~valid] = weight[~valid] = torch.nan
    value.requires_grad_()
    factor = weight if weighted else torch.ones(12)
    expected = sum(factor[i] * of_sample(value[i], td_target[i]) for i in range(12) if valid[i])
    loss_sum, terms = loss(value, td_target, valid, *((weight,) if weighted else ()))
    gradient, wanted = (torch.autograd.grad(each, value)[0] for each in (loss_sum, expected))
    assert 0 < valid.sum() < 12 and loss_sum.item() == terms["loss"].item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)
    assert not any(term.requires_grad for term in terms.values()) and not gradient[~valid].any()
    value, td_target = value.detach()[valid], td_target[valid]
    if name == "cross-entropy":
        p = value.softmax(-1)
        means, distance = p @ SUPPORT, torch.tensor([*map(divergence, td_target, p)], dtype=torch.float64)
        priority, distance_name = distance, "divergence"
    else:
        means, reached = (x.mean(1) if shape else x for x in (value, td_target))
        distance, distance_name = (reached - means).abs(), "td_error"
        priority = distance.clamp(1e-6, 1)
    assert terms["value"].item() == pytest.approx(means.sum().item())
    assert terms[distance_name].item() == pytest.approx(distance.sum().item())
    assert ("priority" in terms) == (name in IS_WEIGHTED)
    if "priority" in terms:
        torch.testing.assert_close(terms["priority"][valid], priority)
        assert terms["priority"].isfinite().all()


def test_priorities_are_bounded() -> None:
    """Priorities lie between 1e-6 and a finite maximum."""
    certain = torch.tensor([[0.0, -300.0, -300.0]] * 2).log_softmax(-1)
    td_target = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    _, terms = cross_entropy_loss(certain, td_target, torch.arange(3.0), torch.ones(2, dtype=torch.bool))
    assert terms["priority"][0].item() == pytest.approx(math.log(1e6) - 1e-6 * math.log(1e6), rel=1e-4)
    assert terms["priority"][1].item() == pytest.approx(1e-6)
    _, terms = huber_loss(torch.zeros(3), torch.tensor([0.25, -0.5, -40.0]), torch.ones(3, dtype=torch.bool))
    assert terms["priority"].tolist() == [0.25, 0.5, 1.0]


# ---- targets ----


def make(algo_class: Any, **changes: Any) -> Any:
    """Returns an algorithm whose networks are tables of 3 states and 2 actions."""
    settings = algo_class.Settings(**{**SMALL, **changes})
    algo = algo_class(table_spec(3, 2), settings, 1000, 2, 4, table_trunk)
    algo.setup(0, RecordingUpdate)
    return algo


def transitions(
    state: list[int], action: list[int], return_: list[float], after: list[int], bootstrap: list[float]
) -> TransitionBatch:
    return TransitionBatch(
        observation=one_hot(state, 3),
        action=torch.tensor(action),
        return_=torch.tensor(return_),
        next_observation=one_hot(after, 3),
        bootstrap=torch.tensor(bootstrap),
        valid=torch.ones(len(state), dtype=torch.bool),
    )


TABLE = [[0.0, 1.0], [5.0, 2.0], [3.0, 4.0]]
TARGET = [[0.5, 0.25], [1.0, 7.0], [8.0, 6.0]]
# One step; three steps; a terminated episode; a truncated one, after two of three steps.
BATCH = transitions([0, 0, 1, 2], [0, 1, 1, 0], [0.1, 0.2, 0.3, 0.4], [1, 2, 2, 1], [0.9, 0.729, 0.0, 0.81])


@pytest.mark.parametrize("double", [False, True])
def test_targets_of_hand_made_tables(double: bool) -> None:
    """DQN's targets use the target table's value of the best next action, chosen by the policy's table in double Q."""
    algo = make(DQN, double=double)
    set_table(algo.policy, TABLE)
    set_table(algo.target, TARGET)
    best = [1.0, 6.0, 6.0, 1.0] if double else [7.0, 8.0, 8.0, 7.0]  # states 1, 2, 2, 1
    td_targets = [r + d * q for r, d, q in zip([0.1, 0.2, 0.3, 0.4], [0.9, 0.729, 0.0, 0.81], best, strict=True)]
    values = [0.0, 1.0, 2.0, 3.0]
    errors = [td_target - value for td_target, value in zip(td_targets, values, strict=True)]
    importance = [1.0, 0.5, 0.25, 2.0]
    loss_sum, terms = algo.loss(BATCH._replace(importance=torch.tensor(importance)))
    expected = sum(weight * huber(error) for weight, error in zip(importance, errors, strict=True))
    assert loss_sum.item() == pytest.approx(expected, rel=1e-6)
    assert terms["value"].item() == sum(values)
    assert terms["priority"].tolist() == pytest.approx([max(min(abs(e), 1), 1e-6) for e in errors], rel=1e-6)


def categorical_target(p: list[float], support: list[float], return_: float, bootstrap: float) -> list[float]:
    """Spreads each atom's mass over all atoms by a triangular kernel around the value that it reaches."""
    distance, td_target = support[1] - support[0], [0.0] * len(support)
    for j, mass in enumerate(p):
        reached = min(max(return_ + bootstrap * support[j], support[0]), support[-1])
        for i, atom in enumerate(support):
            td_target[i] += mass * max(0.0, 1 - abs(reached - atom) / distance)
    return td_target


@pytest.mark.parametrize("double", [False, True])
def test_categorical_targets_of_hand_made_tables(double: bool) -> None:
    """Categorical targets are the best next action's distribution, moved by the return and projected."""
    algo = make(CategoricalDQN, atoms=5, v_min=-2.0, v_max=2.0, double=double)
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


@pytest.mark.parametrize("double", [False, True])
def test_quantile_targets_of_hand_made_tables(double: bool) -> None:
    """Quantile targets are the best next action's quantiles, moved by the return; acting is greedy by their mean."""
    torch.manual_seed(0)
    algo = make(QRDQN, quantiles=5, double=double)
    mine, others = 2 * torch.randn(2, 3, 2, 5, generator=torch.Generator().manual_seed(4))
    set_table(algo.policy, mine)
    set_table(algo.target, others)
    best = (mine if double else others).mean(-1).argmax(-1)
    assert any(best[s] != others[s].mean(-1).argmax() for s in (1, 2)) == double
    expected = 0.0
    steps = zip([0, 0, 1, 2], [0, 1, 1, 0], [1, 2, 2, 1], BATCH.return_, BATCH.bootstrap, strict=True)
    for state, action, after, return_, bootstrap in steps:
        td_target = (return_ + bootstrap * others[after, best[after]]).tolist()
        expected += quantile_loss(mine[state, action].tolist(), td_target)
    loss_sum, terms = algo.loss(BATCH)
    assert loss_sum.item() == pytest.approx(expected, rel=1e-5) and terms["priority"].shape == (4,)
    observation = one_hot([0, 1, 2], 3)
    assert torch.equal(algo.policy.act(observation, None)[0], mine.mean(-1).argmax(-1))


def test_returns_outside_of_the_support_are_counted() -> None:
    """Valid returns beyond the support's ends are counted; a return exactly at an end is not."""
    algo = make(CategoricalDQN, atoms=5, v_min=-2.0, v_max=2.0)
    returns = [-2.5, -2.0, 0.0, 2.0, 2.25, 30.0, 30.0]
    batch = transitions([0, 1, 2, 1, 0, 0, 0], [0] * 7, returns, [1] * 7, [0.9] * 7)
    batch.valid[5] = False
    assert algo.loss(batch)[1]["return_outside_support"].item() == 3
