"""A fake CUDA device that runs GPU code without a GPU and exposes its faults. README.md describes the device.

Backpropagation calls autograd's nodes one by one, without hooks. `module.to` makes new parameters, where a real GPU
would keep the objects. Anything else that is not modeled raises NotImplementedError.
"""

from tests.fake_cuda.machine import Counts, Machine, counting, machine
from tests.fake_cuda.runtime import fake_gpus

__all__ = ["Counts", "Machine", "counting", "fake_gpus", "machine"]
