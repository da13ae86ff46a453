"""Limits the size of networks that other people's files describe."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.linspace)


class MemoryLimit(TorchFunctionMode):
    """A context that raises MemoryError, without allocating, if layers would need more than num_numbers.

    It counts the sizes that layers request from torch for their parameters and buffers."""

    def __init__(self, num_numbers: int):
        super().__init__()
        self._left = num_numbers

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _FACTORIES:
            size = args[0] if args and isinstance(args[0], Sequence) else [n for n in args if isinstance(n, int)]
            self._left -= math.prod(size)
            if self._left < 0:
                raise MemoryError("the network needs more numbers than its limit")
        return func(*args, **(kwargs or {}))
