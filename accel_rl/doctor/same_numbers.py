"""Makes a GPU compute what the CPU computes, so that the two can be compared: random numbers and float32.

The tests of the GPU code use it, too. It imports nothing of accel_rl."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Turns off TF32 for a block, and the search for the fastest convolution: it may choose differently each time."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class CpuRandomNumbers(TorchFunctionMode):
    """Replaces the numbers that a GPU's generators draw by those that a CPU's generator draws from the same seed.

    It holds for the thread that enters it. Not for draws within a CUDA graph, since the numbers are copied to the GPU.
    A generator whose state is loaded goes on with the numbers that it had."""

    DRAWS = (torch.rand, torch.randn, torch.randint, torch.randperm)

    def __init__(self) -> None:
        super().__init__()
        self._twins: dict[int, tuple[torch.Generator, torch.Generator]] = {}  # a GPU's and the CPU's, by id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        generator = options.get("generator")
        if func not in self.DRAWS or generator is None or torch.device(generator.device).type == "cpu":
            return func(*args, **options)
        if id(generator) not in self._twins:
            self._twins[id(generator)] = (generator, torch.Generator("cpu").manual_seed(generator.initial_seed()))
        options |= {"generator": self._twins[id(generator)][1], "device": "cpu"}
        return func(*args, **options).to(generator.device)
