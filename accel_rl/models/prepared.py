"""Keeps tensors made from parameters (cast, packed) until the parameters change."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor | None]
"""A weight and a bias, in an operation's format."""

MAX_KEPT = 16  # operands of a layer: a few precisions and batch sizes


class PreparedTensors:
    """The prepared tensors of a layer, made at first use, and again at the first use after its parameters changed.

    PyTorch's own counters reveal changes: every in-place operation increments them, through any view and through the
    flat vector (updates/flat.py). Only writes through `.data` or NumPy stay hidden."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Made] = {}

    def get(self, name: Hashable, make: Callable[[], Operands], weight: Tensor, bias: Tensor | None) -> Operands:
        """Returns make(), or its earlier result for the same values of weight and bias.

        name: distinguishes the result from all others."""
        version = _version(weight), bias is not None and _version(bias)
        made = self._made.get(name)
        if made is None or made.version != version:
            if len(self._made) >= MAX_KEPT:
                self._made.clear()
            with torch.inference_mode(False), torch.no_grad():  # a later gradient may need it
                made = self._made[name] = _Made(version, make())
        return made.operands

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PreparedTensors, ()


class _Made(NamedTuple):
    version: Hashable
    operands: Operands


def _version(parameter: Tensor) -> tuple[int, int, int]:
    vector = getattr(parameter, "flat_vector", parameter)
    return parameter.data_ptr(), parameter._version, vector._version
