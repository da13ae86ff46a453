"""Handles nested batches: tensors and numbers in NamedTuples, tuples, lists, dicts, rollouts; None for absent
values."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from accel_rl.rollout import Batch, Rollout

LEAF = (Tensor, float, int)


def leaves(tree: Any) -> list[Any]:
    """Returns all tensors and numbers of a nested batch, in the order of its fields."""
    if isinstance(tree, LEAF):
        return [tree]
    return [] if tree is None else [leaf for part in _parts(tree) for leaf in leaves(part)]


def _parts(tree: Any) -> Iterable[Any]:
    """Returns the parts of a nested batch. Raises TypeError for types that `map_leaves` does not take."""
    if isinstance(tree, dict):
        return tree.values()
    if isinstance(tree, Rollout):
        return tree.tensors().values()
    if not isinstance(tree, tuple | list):
        raise TypeError(
            f"{type(tree).__name__} in a batch; pass tensors and numbers, in NamedTuples, tuples, lists, dicts and "
            "rollouts, or None"
        )
    return tree


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns a batch of the same structure with function(leaf) in place of each tensor and number.

    The games and first_step of a resulting rollout cannot be read. Raises TypeError for types not named above."""
    if isinstance(tree, LEAF):
        return function(tree)
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {name: map_leaves(function, part) for name, part in tree.items()}
    if isinstance(tree, Rollout):
        return tree.for_graphs(map_leaves(function, tree.tensors()))
    parts = [map_leaves(function, part) for part in _parts(tree)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def structure(tree: Any) -> Any:
    """Returns a hashable structure, equal for batches that differ in values only: types, names, shapes, dtypes."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return dict, tuple((name, structure(part)) for name, part in tree.items())
    if isinstance(tree, tuple | list):
        return type(tree), tuple(structure(part) for part in tree)
    if isinstance(tree, Rollout):
        return Rollout, tree.frame_stack, structure(tree.tensors())
    return type(tree)


def to_device(tree: Any, device: torch.device) -> Any:
    """Returns the batch with all tensors on a device, and numbers as 0-d tensors there; does not wait for a GPU."""

    def move(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            return torch.full((), leaf, dtype=dtype_of(leaf), device=device)
        if leaf.device == device:
            return leaf
        if not leaf.dim() and leaf.device.type == "cpu":
            return torch.full((), leaf.item(), dtype=leaf.dtype, device=device)
        return leaf.to(device, non_blocking=device.type == "cuda")

    return map_leaves(move, tree)


def dtype_of(leaf: Any) -> torch.dtype:
    """Returns the dtype of a leaf; for a number, that of its later tensor: float32, int64 or bool."""
    if isinstance(leaf, Tensor):
        return leaf.dtype
    if isinstance(leaf, float):
        return torch.get_default_dtype()
    return torch.bool if isinstance(leaf, bool) else torch.int64


def _holds_sequences(tree: Any) -> bool:
    if isinstance(tree, Batch):
        return tree.is_sequences
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return any(map(_holds_sequences, parts))


def slices(tree: Any, most_elements: int) -> list[Any]:
    """Cuts a batch along its samples, the first axis, into parts of about equal size; 0-d tensors go with each part.

    No tensor of a part has more than most_elements elements, but each part has at least one sample. A batch that
    contains a `Batch` of sequences stays whole. Raises ValueError if tensors to cut hold different numbers of
    samples."""
    samples = [leaf for leaf in leaves(tree) if leaf.dim()]
    largest = max([leaf.numel() for leaf in samples], default=0)
    if largest <= most_elements or _holds_sequences(tree):
        return [tree]
    lengths = {len(leaf) for leaf in samples}
    if len(lengths) > 1:
        raise ValueError(
            f"tensors with {sorted(lengths)} samples in one batch, but they must be equal; "
            "put sequences [T, B, ...] into a Batch, which is not cut"
        )
    (num_samples,) = lengths
    num_parts = min(num_samples, -(-largest // most_elements))
    bounds = [part * num_samples // num_parts for part in range(num_parts + 1)]
    return [
        map_leaves(lambda leaf, rows=slice(start, stop): leaf[rows] if leaf.dim() else leaf, tree)  # type: ignore[misc]
        for start, stop in pairwise(bounds)
    ]
