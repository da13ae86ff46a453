"""Nested batches: tensors in NamedTuples, tuples and dicts, with None where something is absent."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor


def leaves(tree: Any) -> list[Tensor]:
    """Returns all tensors of a nested batch, in the order of its fields."""
    if isinstance(tree, Tensor):
        return [tree]
    if tree is None:
        return []
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]


def map_leaves(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Returns a batch of the same structure with function(tensor) in place of each tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {name: map_leaves(function, part) for name, part in tree.items()}
    parts = [map_leaves(function, part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def slices(tree: Any, most_elements: int) -> list[Any]:
    """Cuts a batch along its samples, the first axis, into parts of about equal size; 0-d tensors go with each part.

    No tensor of a part has more than most_elements elements, but each part has at least one sample. Raises ValueError
    if the tensors do not hold the same number of samples."""
    samples = [leaf for leaf in leaves(tree) if leaf.dim()]
    lengths = {len(leaf) for leaf in samples}
    if len(lengths) > 1:
        raise ValueError(
            f"tensors with {sorted(lengths)} samples in one batch, but they must be equal; "
            "or call minimize with sliceable=False"
        )
    num_samples = max(lengths, default=0)
    largest = max((leaf.numel() for leaf in samples), default=0)
    num_parts = max(1, min(num_samples, -(-largest // most_elements)))
    bounds = [part * num_samples // num_parts for part in range(num_parts + 1)]
    return [
        map_leaves(lambda leaf, rows=slice(start, stop): leaf[rows] if leaf.dim() else leaf, tree)  # type: ignore[misc]
        for start, stop in pairwise(bounds)
    ]
