"""Defines losses and their terms, and packs terms into few tensors."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.updates.trees import map_leaves

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""loss(*batch) -> the sum of the loss over the valid samples, and its detached terms: sums to log [], or an entry for
each sample [N, ...]."""


class LossPart(NamedTuple):
    """A loss and its batch, the arguments that it takes."""

    loss: Loss
    batch: tuple[Any, ...]


Terms = dict[str, Tensor]

Place = tuple[int, str]  # position and name of a term


class PackedTerms(NamedTuple):
    """Terms in few tensors, so that few launches copy them: 0-d terms are stacked, by dtype."""

    scalars: dict[tuple[Place, ...], Tensor]
    arrays: dict[Place, Tensor]


def pack(terms: Terms) -> PackedTerms:
    by_dtype: dict[torch.dtype, list[Place]] = {}
    for place in enumerate(terms):
        if not terms[place[1]].dim():
            by_dtype.setdefault(terms[place[1]].dtype, []).append(place)
    scalars = {tuple(places): torch.stack([terms[name] for _, name in places]) for places in by_dtype.values()}
    return PackedTerms(scalars, {place: terms[place[1]] for place in enumerate(terms) if terms[place[1]].dim()})


def unpack(packed: PackedTerms) -> Terms:
    """Returns copies of the terms, in their order."""
    return unpacked(map_leaves(torch.clone, packed))


def pack_all(updates: Sequence[Terms]) -> PackedTerms:
    """Packs the terms of several updates [U, ...], which all have the same names."""
    packed = [pack(terms) for terms in updates]
    return PackedTerms(
        *({key: torch.stack([each[key] for each in field]) for key in field[0]} for field in zip(*packed, strict=True))
    )


def unpack_all(packed: PackedTerms) -> list[Terms]:
    """Returns copies of the terms that `pack_all` packed."""
    copies: PackedTerms = map_leaves(torch.clone, packed)
    num_updates = len(next(iter([*copies.scalars.values(), *copies.arrays.values()])))
    return [unpacked(map_leaves(itemgetter(index), copies)) for index in range(num_updates)]


def unpacked(packed: PackedTerms) -> Terms:
    """Returns the terms, in their order, as views."""
    found = dict(packed.arrays)
    for places, values in packed.scalars.items():
        found |= zip(places, values.unbind(), strict=True)
    return {name: value for (_, name), value in sorted(found.items(), key=lambda item: item[0])}
