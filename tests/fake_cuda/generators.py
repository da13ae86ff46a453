"""Generators on a GPU. Like real ones, they draw other numbers from a seed than a CPU's generator.

tests/helpers/same_numbers.py makes both devices draw the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.fake_cuda.machine import machine
from tests.fake_cuda.streams import gpu_index

CpuGenerator = torch.Generator
OTHER_SEED = 0x5EED_5EED  # changes a seed, so other numbers are drawn; a CPU's generator reads 32 bits
TAIL = torch.frombuffer(bytearray(b"of a fake GPU..."), dtype=torch.uint8)  # makes states differ from a CPU's


class Generator(CpuGenerator):
    """Replaces torch.Generator: makes the real one on a CPU, and this class on a GPU."""

    _on: torch.device

    def __new__(cls, device: Any = "cpu") -> Any:
        device = torch.device(device)
        if device.type != "cuda":
            return CpuGenerator(device)
        generator: Generator = CpuGenerator.__new__(cls)
        generator._on = torch.device("cuda", gpu_index(device))
        return generator

    def __init__(self, device: Any = "cpu"):
        self.manual_seed(67280421310721)  # PyTorch's default
        _all.add(self)

    @property
    def device(self) -> torch.device:
        return self._on

    def manual_seed(self, seed: int) -> Generator:
        super().manual_seed(seed ^ OTHER_SEED)
        return self

    def initial_seed(self) -> int:
        return super().initial_seed() ^ OTHER_SEED

    def get_state(self) -> Tensor:
        return torch.cat([super().get_state(), TAIL])

    def set_state(self, state: Tensor) -> Generator:
        if len(state) != len(self.get_state()) or not torch.equal(state[-len(TAIL) :], TAIL):
            raise RuntimeError("RNG state is wrong size")
        super().set_state(state[: -len(TAIL)])
        return self

    def cpu_state(self) -> Tensor:
        return super().get_state()

    def set_cpu_state(self, state: Tensor) -> None:
        super().set_state(state)


_all: weakref.WeakSet[Generator] = weakref.WeakSet()
defaults: list[Any] = []  # one per GPU


def find(generator: CpuGenerator) -> Generator:
    """Returns the GPU's generator that an operation was given, for which the dispatcher passes on another object.

    Raises RuntimeError for a generator of the CPU."""
    seed = generator.initial_seed()
    for each in [each for each in _all if CpuGenerator.initial_seed(each) == seed]:
        state = each.cpu_state()
        CpuGenerator.manual_seed(each, seed + 1)
        is_same = generator.initial_seed() == seed + 1
        each.set_cpu_state(state)
        if is_same:
            return each
    raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def default_generator(device: Any = None) -> Any:
    return defaults[gpu_index(device)]


class Draw:
    """An operation that draws random numbers: immediately, or in a graph at each launch."""

    def __init__(self, generator: Any, call: Callable[[], Any]):
        self.generator, self.call = generator, call
        self.values: Any = None

    def draw(self) -> Any:
        """Returns new values, and advances the generator."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.cpu_state())
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self.call()
        finally:
            self.generator.set_cpu_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)


def check_registered(generator: Any, gpu: int) -> None:
    """Raises RuntimeError for a generator that is not registered with the graph being captured (the default one always
    is). After a failed capture it also raises for the default one, until another capture succeeds."""
    capture = machine().capture
    if not capture and generator is defaults[gpu] and machine().generators_are_capturing:
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
    if capture and generator is not defaults[gpu] and not any(each is generator for each in capture.generators):
        capture.is_valid = False
        raise RuntimeError("Attempt to use a generator that is not registered with the graph during capture")
