"""Tests of the sum tree against cumulative sums, and of prioritized draws."""

from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from accel_rl.replay import SumTree
from accel_rl.replay.replay import PrioritizedDistribution, importance_weights
from accel_rl.updates.cuda_graphs import CudaGraphs
from tests.fake_cuda.machine import counting

# Sizes around the number of siblings, 64 on a CPU and 1024 on a GPU, and of trees several levels deep.
SIZES_ON_CPU, SIZES_ON_GPU = [1, 2, 63, 64, 65, 128, 4096, 4097, 5000], [1, 2, 65, 1023, 1024, 1025, 2048, 5000]
on_cpu_and_gpu = pytest.mark.parametrize(
    ("device", "sizes"), [("cpu", SIZES_ON_CPU), pytest.param("cuda:0", SIZES_ON_GPU, marks=pytest.mark.gpu)]
)


def noise(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(values: Any, device: str = "cpu") -> SumTree:
    values = torch.as_tensor(values, dtype=torch.float64, device=device)
    tree = SumTree(len(values), device)
    tree.update(torch.arange(len(values), device=device), values)
    return tree


def find(tree: SumTree, prefix: np.ndarray[Any, Any]) -> Any:
    return tree.find(torch.from_numpy(prefix).to(tree[:].device), tree.total).cpu().numpy()


def assert_consistent(tree: SumTree) -> None:
    """Checks that every parent is the sum of its children."""
    for children, parents in zip(tree._levels, tree._levels[1:], strict=False):
        sums = children.view(-1, tree._fan_out).sum(-1)
        assert torch.equal(parents[: len(sums)], sums) and not parents[len(sums) :].any()


def leaf_of(values: np.ndarray[Any, Any], prefix: np.ndarray[Any, Any]) -> Any:
    """Returns the first leaf whose cumulative sum is greater than the prefix."""
    return np.searchsorted(np.cumsum(values), prefix, side="right")


@pytest.mark.parametrize("size", [1, 63, 64, 65, 5000])
def test_draws_are_proportional(size: int) -> None:
    """Leaves are drawn in proportion to their values, within four standard deviations; those of value 0 never are."""
    rng = np.random.default_rng(size)
    values = rng.integers(1, 6, size).astype(float)
    values[rng.random(size) < 0.3] = 0
    values[-1] = 3.0  # the last leaf can be drawn
    tree = filled(values)
    count = 10 * size + 1000
    index, probability = tree.choose(noise(count, 1))
    assert index.dtype == torch.int64 and probability.dtype == torch.float64
    share = values / values.sum()
    np.testing.assert_allclose(probability.numpy(), share[index.numpy()], rtol=1e-14)
    drawn = np.bincount(index.numpy(), minlength=size)
    assert len(drawn) == size and not drawn[values == 0].any()
    expected = count * share[values > 0]
    chi_square = ((drawn[values > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert chi_square <= freedom + 4 * (2 * freedom) ** 0.5


def assert_finds_in_sums(values: np.ndarray[Any, Any], rng: np.random.Generator, device: str) -> None:
    """Compares with a search in the cumulative sums. Integer values make sums exact and hit boundaries."""
    total = int(values.sum())
    prefix = rng.integers(0, total, 100) + rng.choice([0.0, 0.5], 100)
    prefix[:2] = 0, total - 1
    np.testing.assert_array_equal(find(filled(values, device), prefix), leaf_of(values, prefix))


@on_cpu_and_gpu
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_find_is_a_search_in_the_cumulative_sum(device: str, sizes: list[int], data: st.DataObject) -> None:
    """A prefix at the boundary of two leaves finds the second one, and leaves of value 0 are never found."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    size = data.draw(st.sampled_from(sizes))
    values = rng.integers(0, data.draw(st.sampled_from([2, 3, 10])), size).astype(float)
    values[rng.integers(size)] += 1  # At least one value is not 0.
    assert_finds_in_sums(values, rng, device)


@on_cpu_and_gpu
def test_find_agrees_with_exact_fractions(device: str, sizes: list[int]) -> None:
    """For any floats, the found leaf is positive and its range holds the prefix, up to rounding."""
    for size in sizes:
        rng = np.random.default_rng(size)
        values = rng.random(size) * 10.0 ** rng.integers(-9, 3, size)
        values[rng.random(size) < 0.3] = 0
        values[size // 2] = 0.1
        ends = [*accumulate(map(Fraction, values.tolist()))]
        prefix = np.concatenate([rng.random(100) * float(ends[-1]), np.cumsum(values)[:100]])
        margin = ends[-1] / 10**14
        for sum_before, leaf in zip(map(Fraction, prefix.tolist()), find(filled(values, device), prefix), strict=True):
            assert values[leaf] > 0
            low, high = (bisect_right(ends, sum_before + by) for by in (-margin, margin))
            assert leaf in range(low, high + 1) or (high == size and not values[leaf + 1 :].any())


@on_cpu_and_gpu
def test_a_prefix_at_the_end_finds_the_last_leaf_of_positive_value(device: str, sizes: list[int]) -> None:
    """If rounding makes a prefix as large as the total, it finds the last leaf of positive value."""
    for size in sizes:
        values = np.full(size, 0.1)
        last = size - 1 - size // 3
        values[last + 1 :] = 0
        tree = filled(values, device)
        total = tree.total.item()
        assert [*find(tree, np.array([total, np.nextafter(total, 9e9), 2 * total, total + 1e-9]))] == [last] * 4


@on_cpu_and_gpu
def test_a_node_of_tiny_value_leads_to_a_positive_leaf(device: str, sizes: list[int]) -> None:
    """Values far below the precision of the total lead to a positive leaf, never to one of value 0."""
    for size in sizes[3:]:
        values = np.zeros(size)
        values[0], values[size - 40 :] = 1.0, 0.1 * 2.0**-60
        tree = filled(values, device)
        assert (values[find(tree, np.array([0.5, np.nextafter(1, 0), 1.0]))] > 0).all()
        tree.update(torch.tensor([0], device=device), torch.zeros(1, device=device))
        assert [*find(tree, np.array([0.0, 2.0]) * tree.total.item())] == [size - 40, size - 1]


@pytest.mark.gpu
@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_without_a_finite_total_a_gpu_finds_a_leaf_that_exists(value: float) -> None:
    """The index is in range, or the GPU would become unusable before the run can report what is not finite."""
    for size in SIZES_ON_GPU:
        values = np.zeros(size)
        values[size // 2] = value
        index, _ = filled(values, "cuda:0").choose(torch.rand(50, dtype=torch.float64).to("cuda:0"))
        assert 0 <= int(index.min()) and int(index.max()) < size


@pytest.mark.gpu(fake=True)
def test_a_draw_takes_few_launches_on_a_gpu() -> None:
    """A draw of a million leaves takes 30 launches and a change of values 6; with 64 children per node they took 119
    and 14. docs/hardware.md has these numbers."""
    tree = filled(torch.ones(10**6), "cuda:0")
    index, value = torch.arange(32, device="cuda:0"), torch.ones(32, device="cuda:0")
    with counting() as draw:
        tree.choose(torch.rand(32, dtype=torch.float64, device="cuda:0"))
    with counting() as change:
        tree.update(index, value)
    assert (draw.launches, change.launches) == (30, 6)
    assert not draw.syncs and not change.syncs


@pytest.mark.gpu
def test_a_draw_is_captured_in_deterministic_runs() -> None:
    """A CUDA graph draws the same as single launches, even with --deterministic, which refuses unordered sums."""
    tree, graphs = filled(torch.arange(3000), "cuda:0"), CudaGraphs(torch.device("cuda:0"))
    torch.use_deterministic_algorithms(True)
    for seed in range(4):
        noise = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to("cuda:0")
        for one, other in zip(graphs("draw", tree.choose, (noise,)), tree.choose(noise), strict=True):
            assert torch.equal(one, other)
    assert graphs._calls and all(calls.graphs for calls in graphs._calls.values())


@pytest.mark.parametrize(("device", "size"), [("cpu", 5000), pytest.param("cuda:0", 30_000, marks=pytest.mark.gpu)])
def test_updates_do_not_drift(device: str, size: int) -> None:
    """After many changes every node is still the sum of its children."""
    rng = np.random.default_rng(0)
    tree, values = SumTree(size, device), np.zeros(size)
    for _ in range(1000 if device == "cpu" else 50):
        index = rng.choice(size, 20, replace=False)
        new = rng.random(20) * 10.0 ** rng.integers(-6, 6, 20)
        values[index] = new
        tree.update(torch.from_numpy(index).to(device), torch.from_numpy(new).to(device))
    assert np.array_equal(tree[:].cpu().numpy(), values)
    assert tree.total.item() == pytest.approx(values.sum(), rel=1e-12)
    assert_consistent(tree)
    tree.update(torch.arange(size, device=device), torch.zeros(size, device=device))
    assert tree.total.item() == 0


def test_the_largest_value_counts_where_a_leaf_occurs_more_than_once() -> None:
    """A leaf that occurs more than once in an update gets its largest value."""
    tree = filled([1.0] * 100 + [9.0] * 100)
    tree.update(torch.tensor([150, 3, 150, 3, 150]), torch.tensor([2.0, 0.5, 5.0, 0.25, 4.0]))
    expected = [1.0] * 100 + [9.0] * 100
    expected[150], expected[3] = 5.0, 0.5
    assert tree[:].tolist() == expected
    assert tree[torch.tensor([150, 3])].tolist() == [5.0, 0.5]
    assert tree.total.item() == sum(expected)
    assert_consistent(tree)


def test_a_restored_tree_is_equal() -> None:
    """A restored tree has equal levels and draws."""
    rng = np.random.default_rng(0)
    tree, other = filled(rng.random(5000)), filled(rng.random(5000))
    other.load_state_dict(tree.state_dict())
    for level, same in zip(tree._levels, other._levels, strict=True):
        assert torch.equal(level, same)
    drawn = [each.choose(noise(100, 2))[0] for each in (tree, other)]
    assert torch.equal(*drawn)


# ---- prioritized draws ----


def test_probabilities_and_weights_by_hand() -> None:
    """Draw probabilities and importance weights equal those computed by hand."""
    priorities = PrioritizedDistribution(4, 0.6, None, torch.device("cpu"))
    priorities.update(torch.arange(4), torch.tensor([1.0, 2.0, 4.0, 1.0]), torch.ones(4, dtype=torch.bool))
    index, probability = priorities.tree.choose(noise(1000, 0))
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
    """New samples get the largest priority so far, or the given one."""
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
    """A step that became invalid after it was drawn keeps priority 0."""
    distribution = PrioritizedDistribution(4, 0.5, None, torch.device("cpu"))
    distribution.add(torch.arange(4), torch.ones(4, dtype=torch.bool))
    valid = torch.tensor([True, False, True, True])
    distribution.update(torch.tensor([0, 1]), torch.tensor([4.0, 9.0]), valid)
    assert distribution.tree[:].tolist() == [2.0, 0.0, 1.0, 1.0]
