"""A fake CUDA device: GPU code runs on it without a GPU, and its faults show. README.md describes the device.

Backpropagation calls autograd's nodes one by one, without hooks. `module.to` makes new parameters, where a GPU would
keep the objects. Anything else that it does not model raises NotImplementedError.
"""

from tests.fake_cuda.machine import Counts, Machine, counting, machine
from tests.fake_cuda.runtime import fake_gpus

__all__ = ["Counts", "Machine", "counting", "fake_gpus", "machine"]
