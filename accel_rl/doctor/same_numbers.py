"""Makes a GPU's results comparable with the CPU's: the same random numbers, and full float32.

The tests of the GPU code also use it. It imports nothing from accel_rl."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Turns off TF32 for a block, and the search for the fastest convolution, whose choice may vary."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class CpuRandomNumbers(TorchFunctionMode):
    """Replaces the random numbers of a GPU's generators with those of a CPU's generator with the same seed.

    It applies to the thread that enters it, but not to draws within a CUDA graph, since the numbers are copied to the
    GPU. Loading a generator's state does not change the numbers that follow."""

    DRAWS = (torch.rand, torch.randn, torch.randint, torch.randperm)

    def __init__(self) -> None:
        super().__init__()
        self._twins: dict[int, tuple[torch.Generator, torch.Generator]] = {}  # the GPU's and the CPU's generator, by id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        generator = options.get("generator")
        if func not in self.DRAWS or generator is None or torch.device(generator.device).type == "cpu":
            return func(*args, **options)
        if id(generator) not in self._twins:
            self._twins[id(generator)] = (generator, torch.Generator("cpu").manual_seed(generator.initial_seed()))
        options |= {"generator": self._twins[id(generator)][1], "device": "cpu"}
        return func(*args, **options).to(generator.device)
