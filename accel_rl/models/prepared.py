"""Keeps tensors made from parameters (cast, packed) until the parameters change."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor | None]
"""A weight and a bias, in an operation's format."""

MOST_KEPT = 16  # operands of a layer: a few precisions and batch sizes


Prepared = TypeVar("Prepared")


class PreparedTensors(Generic[Prepared]):
    """The prepared tensors of a layer, made at first use, and again at the first use after its parameters changed.

    PyTorch's own counters reveal changes: every operation in place increments them, through any view and through the
    flat vector (updates/flat.py). Only writes through `.data` or NumPy stay hidden."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Made] = {}

    def get(self, name: Hashable, make: Callable[[], Prepared], weight: Tensor, bias: Tensor | None) -> Prepared:
        """Returns make(), or its earlier result for the same values of weight and bias.

        name: distinguishes it from everything else that is made here."""
        version = _version(weight), bias is not None and _version(bias)
        made = self._made.get(name)
        if made is None or made.version != version:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            with torch.inference_mode(False), torch.no_grad():  # a later gradient may need it
                made = self._made[name] = _Made(version, make())
        return made.result  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: object) -> "PreparedTensors[Prepared]":
        return PreparedTensors()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PreparedTensors, ()


class _Made(NamedTuple):
    version: Hashable
    result: Any


def _version(parameter: Tensor) -> tuple[int, int, int]:
    vector = getattr(parameter, "flat_vector", parameter)
    return parameter.data_ptr(), parameter._version, vector._version
