"""The sum tree against cumulative sums, and prioritized draws."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from accel_rl.replay import SumTree
from accel_rl.replay.replay import PrioritizedDistribution, importance_weights

SIZES = [1, 63, 64, 65, 5000]  # around a family of 64 siblings, and several levels deep


def filled(values: Any) -> SumTree:
    values = torch.as_tensor(values, dtype=torch.float64)
    tree = SumTree(len(values))
    tree.update(torch.arange(len(values)), values)
    return tree


def assert_consistent(tree: SumTree) -> None:
    """Checks that every parent is the sum of its children."""
    for children, parents in zip(tree._levels, tree._levels[1:], strict=False):
        sums = children.view(-1, 64).sum(-1)
        assert torch.equal(parents[: len(sums)], sums) and not parents[len(sums) :].any()


def leaf_of(values: np.ndarray[Any, Any], prefix: np.ndarray[Any, Any]) -> Any:
    """Returns the first leaf whose cumulative sum is greater, by definition."""
    return np.searchsorted(np.cumsum(values), prefix, side="right")


@pytest.mark.parametrize("size", SIZES)
def test_draws_are_proportional(size: int) -> None:
    """Would catch leaves drawn too often (the last ones by a clamp, the first ones by a rounded prefix), and leaves of
    value 0 drawn at all."""
    rng = np.random.default_rng(size)
    values = rng.integers(1, 6, size).astype(float)
    values[rng.random(size) < 0.3] = 0
    values[-1] = 3.0  # the last leaf can be drawn
    tree = filled(values)
    count = 20 * size + 1000
    index, probability = tree.sample(count, torch.Generator().manual_seed(1))
    assert index.dtype == torch.int64 and probability.dtype == torch.float64
    share = values / values.sum()
    np.testing.assert_allclose(probability.numpy(), share[index.numpy()], rtol=1e-14)
    drawn = np.bincount(index.numpy(), minlength=size)
    assert len(drawn) == size and not drawn[values == 0].any()
    expected = count * share[values > 0]
    chi_square = ((drawn[values > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert chi_square <= freedom + 4 * (2 * freedom) ** 0.5  # the mean plus four stds


def test_the_last_leaves_are_drawn_as_often_as_the_first() -> None:
    """Would catch a bias that a test over all leaves is too coarse to show."""
    tree = filled(torch.ones(5000))
    index, _ = tree.sample(200_000, torch.Generator().manual_seed(0))
    for part in (index < 50, index >= 4950):
        assert abs(int(part.sum()) - 2000) < 4 * 2000**0.5


@settings(max_examples=80, deadline=None)
@given(data=st.data(), size=st.sampled_from([*SIZES, 2, 128, 4096, 4097]))
def test_find_is_a_search_in_the_cumulative_sum(data: st.DataObject, size: int) -> None:
    """Would catch a child taken for its neighbour where their ranges meet: of integers, so that boundaries are hit."""
    seed = data.draw(st.integers(0, 2**20))
    rng = np.random.default_rng(seed)
    values = rng.integers(0, data.draw(st.sampled_from([2, 3, 10])), size).astype(float)
    values[rng.integers(size)] += 1  # not all of them 0
    total = int(values.sum())
    prefix = rng.integers(0, total, 200) + rng.choice([0.0, 0.5], 200)
    prefix[:2] = 0, total - 1
    found = filled(values).find(torch.from_numpy(prefix))
    np.testing.assert_array_equal(found.numpy(), leaf_of(values, prefix))


@pytest.mark.parametrize("size", SIZES)
def test_a_prefix_at_the_end_finds_the_last_leaf_of_positive_value(size: int) -> None:
    """Would catch a leaf of value 0, or one that does not exist, if rounding makes the prefix as large as the total."""
    values = np.full(size, 0.1)
    last = size - 1 - size // 3
    values[last + 1 :] = 0
    tree = filled(values)
    total = tree.total
    above = torch.stack([total, total.nextafter(torch.tensor(9e9, dtype=torch.float64)), 2 * total, total + 1e-9])
    assert tree.find(above).tolist() == [last] * 4


def test_updates_do_not_drift() -> None:
    """Would catch parents corrected by differences, which drift away from the sums."""
    rng = np.random.default_rng(0)
    size = 1024
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(20_000 // 20):
        index = rng.choice(size, 20, replace=False)
        new = rng.random(20) * 10.0 ** rng.integers(-6, 6, 20)
        values[index] = new
        tree.update(torch.from_numpy(index), torch.from_numpy(new))
    assert np.array_equal(tree[:].numpy(), values)
    assert tree.total.item() == pytest.approx(values.sum(), rel=1e-12)
    assert_consistent(tree)
    tree.update(torch.arange(size), torch.zeros(size))
    assert tree.total.item() == 0


def test_the_largest_value_counts_where_a_leaf_occurs_more_than_once() -> None:
    """Would catch the last value winning, two differences adding up, or the old value counting as one of them."""
    tree = filled([1.0] * 100 + [9.0] * 100)
    tree.update(torch.tensor([150, 3, 150, 3, 150]), torch.tensor([2.0, 0.5, 5.0, 0.25, 4.0]))
    expected = [1.0] * 100 + [9.0] * 100
    expected[150], expected[3] = 5.0, 0.5
    assert tree[:].tolist() == expected
    assert tree[torch.tensor([150, 3])].tolist() == [5.0, 0.5]
    assert tree.total.item() == sum(expected)
    assert_consistent(tree)


def test_a_restored_tree_is_equal() -> None:
    """Would catch parents that are not restored with their leaves."""
    rng = np.random.default_rng(0)
    tree, other = filled(rng.random(5000)), filled(rng.random(5000))
    other.load_state_dict(tree.state_dict())
    for level, same in zip(tree._levels, other._levels, strict=True):
        assert torch.equal(level, same)
    drawn = [each.sample(100, torch.Generator().manual_seed(2))[0] for each in (tree, other)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("size", [0, -3])
def test_a_tree_without_leaves_is_refused(size: int) -> None:
    """Would catch a tree from which nothing can be drawn."""
    with pytest.raises(ValueError, match=f"size={size} must be at least 1"):
        SumTree(size)


# ---- prioritized draws ----


def test_probabilities_and_weights_by_hand() -> None:
    """Would catch an exponent left out or applied twice, and weights that grow with the priority."""
    priorities = PrioritizedDistribution(4, 0.6, None, torch.device("cpu"))
    priorities.update(torch.arange(4), torch.tensor([1.0, 2.0, 4.0, 1.0]), torch.ones(4, dtype=torch.bool))
    index, probability = priorities.tree.sample(1000, torch.Generator().manual_seed(0))
    by_leaf = torch.zeros(4, dtype=torch.float64)
    by_leaf[index] = probability
    assert by_leaf.tolist() == pytest.approx([0.17202, 0.26074, 0.39521, 0.17202], abs=1e-5)
    weight = importance_weights(by_leaf, 4, 0.4)
    assert weight.dtype == torch.float32
    assert (weight / weight.max()).tolist() == pytest.approx([1, 0.84675, 0.71698, 1], abs=1e-5)
    assert weight.tolist() == pytest.approx([(4 * p) ** -0.4 for p in by_leaf.tolist()], rel=1e-6)
    assert torch.equal(importance_weights(by_leaf, 4, 0.0), torch.ones(4))


@pytest.mark.parametrize(("new_priority", "first", "later"), [(None, 1.0, 7.0), (0.25, 0.25, 0.25)])
def test_new_samples_have_the_largest_priority_or_a_given_one(
    new_priority: float | None, first: float, later: float
) -> None:
    """Would catch new samples that are never drawn, a maximum of stored powers, or a maximum that falls again."""
    priorities = PrioritizedDistribution(6, 0.5, new_priority, torch.device("cpu"))
    is_valid = torch.tensor([1, 1, 0, 1, 1, 1]).bool()
    priorities.add(torch.arange(4), is_valid)
    assert priorities.tree[:].tolist() == [first**0.5, first**0.5, 0, first**0.5, 0, 0]
    priorities.update(torch.tensor([0, 1]), torch.tensor([7.0, 3.0]), is_valid)
    priorities.update(torch.tensor([0]), torch.tensor([2.0]), is_valid)
    priorities.add(torch.tensor([4]), is_valid)
    expected = [2**0.5, 3**0.5, 0, first**0.5, later**0.5, 0]
    assert priorities.tree[:].tolist() == pytest.approx(expected, rel=1e-15)


def test_what_has_become_invalid_stays_undrawn() -> None:
    """Would catch a step that was lost after it had been drawn, and that its new priority brings back."""
    distribution = PrioritizedDistribution(4, 0.5, None, torch.device("cpu"))
    distribution.add(torch.arange(4), torch.ones(4, dtype=torch.bool))
    valid = torch.tensor([True, False, True, True])
    distribution.update(torch.tensor([0, 1]), torch.tensor([4.0, 9.0]), valid)
    assert distribution.tree[:].tolist() == [2.0, 0.0, 1.0, 1.0]
