"""What makes two devices comparable: plain float32, and the same random numbers."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to repeat bit for bit
TF32 = "NVIDIA_TF32_OVERRIDE"  # 0: NVIDIA's libraries do not use TF32, in processes started from here either


@contextmanager
def exact_float32() -> Iterator[None]:
    """Turns TF32 off within, whose products have 10 bits of mantissa instead of 23, and the search for the fastest
    convolution, whose choice may differ between two calls; convolutions repeat bit for bit. Restores these, and leaves
    deterministic mode."""
    flags: list[tuple[Any, str]] = [
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
    ]
    with warnings.catch_warnings():  # PyTorch is about to rename these
        warnings.simplefilter("ignore")
        before, variable = [getattr(owner, name) for owner, name in flags], os.environ.get(TF32)
        for owner, name in flags:
            setattr(owner, name, name == "deterministic")
        os.environ[TF32] = "0"
        os.environ.setdefault(*CUBLAS)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
            del os.environ[TF32]
            if variable is not None:
                os.environ[TF32] = variable
            for (owner, name), value in zip(flags, before, strict=True):
                setattr(owner, name, value)


class CpuRandomNumbers(TorchFunctionMode):
    """Replaces what a GPU's generators draw by what a CPU's with the same seed do: the GPU's own numbers are others.

    Not for drawing within a CUDA graph: the numbers are copied to the GPU."""

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
