"""A fake CUDA device: GPU code runs on it without a GPU, and what is wrong with it shows. README.md says what it is.

Backpropagation calls autograd's nodes one by one, without hooks. `module.to` makes new parameters, where a GPU would
keep the objects. Whatever else it does not model raises NotImplementedError.
"""

from tests.fake_cuda.machine import Counts, Machine, counting, machine
from tests.fake_cuda.runtime import fake_gpus

__all__ = ["Counts", "Machine", "counting", "fake_gpus", "machine"]
