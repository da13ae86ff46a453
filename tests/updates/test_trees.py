"""Tests of nested batches: their tensors in order, their structure, and slices that make up the whole."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import Batch, TerminalFrames
from accel_rl.updates.trees import leaves, map_leaves, slices, structure, to_device
from tests.helpers.random_rollouts import FRAMES, random_rollout


class Inner(NamedTuple):
    state: Tensor
    absent: Tensor | None = None


class Outer(NamedTuple):
    observation: Tensor
    valid: Tensor
    inner: Inner | None = None


def make_batch(num_samples: int = 31) -> tuple[Any, ...]:
    """Returns a batch of NamedTuples, one nested in another, a dict, a setting, and None."""
    numbers = torch.arange(num_samples)
    outer = Outer(torch.randn(num_samples, 72), numbers % 3 > 0, Inner(-numbers))
    return outer, {"action": 2 * numbers, "none": None}, Outer(numbers, numbers), torch.tensor(0.5), None


def test_leaves_are_all_tensors_in_order() -> None:
    """`leaves` returns all tensors in the order of their fields."""
    outer, actions, plain, setting, _ = make_batch()
    expected = [outer.observation, outer.valid, outer.inner.state, actions["action"], *plain[:2], setting]
    found = leaves((outer, actions, plain, setting, None))
    assert [id(leaf) for leaf in found] == [id(leaf) for leaf in expected]
    assert leaves(None) == leaves(()) == [] and leaves(setting) == [setting]


def test_mapping_keeps_the_structure() -> None:
    """`map_leaves` keeps NamedTuples, names and None."""
    batch = make_batch()
    doubled = map_leaves(lambda leaf: leaf * 2, batch)
    assert [type(part) for part in doubled] == [type(part) for part in batch]
    assert type(doubled[0].inner) is Inner and doubled[0].inner.absent is None
    assert doubled[1]["none"] is None and doubled[2].inner is None and doubled[4] is None
    assert list(doubled[1]) == ["action", "none"]
    for leaf, original in zip(leaves(doubled), leaves(batch), strict=True):
        assert torch.equal(leaf, original * 2)


def test_slices_are_the_whole() -> None:
    """Together, slices hold each sample once, in order; settings stay whole."""
    batch = make_batch()
    parts = slices(batch, most_elements=500)  # a sample has 72 elements
    assert [len(part[0].observation) for part in parts] == [6, 6, 6, 6, 7]
    num_leaves = len(leaves(batch))
    for index in range(num_leaves - 1):
        assert torch.equal(torch.cat([leaves(part)[index] for part in parts]), leaves(batch)[index])
    assert all(leaves(part)[-1] is batch[3] for part in parts)
    assert all(part[0].inner.absent is None and part[1]["none"] is None and part[4] is None for part in parts)
    assert len(slices(batch, most_elements=1)) == 31
    assert len(slices(batch, most_elements=10**6)) == 1
    assert slices((batch[3], None), 1) == [(batch[3], None)]
    assert slices((), 1) == [()]


def test_sequences_stay_whole_wherever_they_are() -> None:
    """A batch of sequences is never sliced."""
    sequences = Batch(torch.zeros(6, 4, 2), torch.zeros(6, 4), torch.ones(6, 4, dtype=torch.bool))
    for batch in (sequences, (sequences,), ((sequences, torch.zeros(6)),), ({"steps": [sequences]}, torch.zeros(6))):
        assert len(slices(batch, 8)) == 1


def test_unequal_numbers_of_samples() -> None:
    """Batches with different numbers of samples are an error."""
    with pytest.raises(ValueError, match=r"\[2, 4\] samples in one batch.*put sequences \[T, B, \.\.\.\] into"):
        slices((torch.zeros(4), Inner(torch.zeros(2, 2))), 3)


def test_numbers_become_tensors() -> None:
    """Numbers become tensors of their kind's dtype without losing digits they need."""
    tree = (0.1, 2**40 + 1, True, {"x": [torch.ones(2), torch.tensor(0.3, dtype=torch.float64)]}, None)
    assert leaves(tree)[:3] == [0.1, 2**40 + 1, True]
    number, count, flag, parts, absent = to_device(tree, torch.device("cpu"))
    assert (number.dtype, count.dtype, flag.dtype) == (torch.float32, torch.int64, torch.bool) and absent is None
    assert (number, count.item(), flag.item()) == (torch.tensor(0.1), 2**40 + 1, True)
    assert parts["x"][0] is tree[3]["x"][0] and parts["x"][1].dtype == torch.float64  # type: ignore[index]
    with pytest.raises(TypeError, match="set in a batch"):
        to_device(({1},), torch.device("cpu"))


def test_the_structure_is_all_but_values() -> None:
    """Two batches have one structure only if shapes, dtypes, names and absent parts agree."""
    batch = make_batch()
    assert structure(batch) == structure(map_leaves(torch.zeros_like, batch))
    assert hash(structure(batch)) == hash(structure(make_batch()))
    x = torch.ones(3)
    others = [x[:2], x.double(), (x,), [x], {"a": x}, {"b": x}, Inner(x), Inner(x, x), (x, None), ()]
    others += [None, 1, 1.0, True]
    assert len({structure(other) for other in [x, *others]}) == len(others) + 1


def test_rollouts_are_batches() -> None:
    """A rollout's leaves are all its tensors, and its frame stack is part of its structure."""
    rollout = random_rollout(FRAMES, ActorCritic(FRAMES, core="gru", core_size=3), 3, 2, seed=0, num_truncated=1)
    tensors = [*rollout.tensors().values()]
    assert len(leaves(rollout)) == 11 + 2 + 4 and len(leaves(tensors)) == 17
    doubled = map_leaves(lambda leaf: leaf + leaf, rollout)
    assert torch.equal(doubled.reward, 2 * rollout.reward) and doubled.horizon == 3 and doubled.frame_stack == 4
    assert torch.equal(doubled.recurrent_inputs.state, 2 * rollout.recurrent_inputs.state)
    assert structure(doubled) != structure(rollout.without_finals())
    ended = replace(rollout, terminal_frames=TerminalFrames(*(torch.zeros(4) for _ in range(3))))
    assert len(leaves(ended)) == 17 + 3
    assert structure(ended.without_finals()) == structure(rollout.without_finals())  # they can share a graph
    assert structure(replace(rollout, first_step=7)) == structure(rollout)
    assert structure(replace(rollout, frame_stack=2)) != structure(rollout)
