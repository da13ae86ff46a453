"""Launches the emulator's kernels on the fake GPU: their threads run on the CPU, as late as the GPU's other work."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.emulator.cuda import driver
from accel_rl.emulator.cuda.memory import Kernel
from tests.fake_cuda.tensors import GpuTensor, _launch


class FakeKernel:
    """A kernel in the memory of the fake GPU."""

    def __init__(self, kernel: Kernel):
        self.kernel, self._random = kernel, np.random.default_rng(0)

    def launch(self, threads: int, arguments: Sequence[Any], block: int = driver.BLOCK) -> None:
        """Launches whole blocks of threads, in random order."""
        gpu = next(each.block.gpu.index for each in arguments if isinstance(each, GpuTensor))
        assert gpu == torch.cuda.current_device()
        order = self._random.permutation(-(-threads // block) * block)
        inner = [each.inner if isinstance(each, GpuTensor) else each for each in arguments]
        _launch(gpu, self.kernel.__name__, lambda: driver.run_on_cpu(self.kernel, order, inner))


def use_fake_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enables launches on the fake GPU."""
    monkeypatch.setattr(driver, "load", FakeKernel)
