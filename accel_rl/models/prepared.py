"""Keeps tensors that are made of parameters (cast, packed) until the parameters change."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor | None]
"""A weight and a bias, as an operation takes them."""

MOST_KEPT = 16  # operands of a layer: a few precisions, and the batch sizes that it is used with


class PreparedTensors:
    """Makes the tensors of a layer at their first use, and again at their first use after its parameters have changed.

    Changes are seen by PyTorch's own counters, which every operation in place increments, through whatever view; those
    of the flat vector, too (updates/flat.py). Only writing through `.data` or NumPy would not be seen."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Made] = {}

    def get(self, name: Hashable, make: Callable[[], Operands], weight: Tensor, bias: Tensor | None) -> Operands:
        """Returns make(), or what it returned for the same values of weight and bias.

        name: tells it from everything else that is made here."""
        version = _version(weight), bias is not None and _version(bias)
        made = self._made.get(name)
        if made is None or made.version != version:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            with torch.inference_mode(False), torch.no_grad():  # it may be saved for a gradient later
                made = self._made[name] = _Made(version, make())
        return made.operands

    def __deepcopy__(self, memo: object) -> "PreparedTensors":
        return PreparedTensors()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PreparedTensors, ()


class _Made(NamedTuple):
    version: Hashable
    operands: Operands


def _version(parameter: Tensor) -> tuple[int, int, int]:
    vector = getattr(parameter, "flat_vector", parameter)
    return parameter.data_ptr(), parameter._version, vector._version
