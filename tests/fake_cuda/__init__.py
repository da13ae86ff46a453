"""A fake CUDA device: GPU code runs on it without a GPU, and what is wrong with it shows.

Tensors say cuda:0 and compute on the CPU (tensors.py). Streams are queues whose work happens as late as is legal, or in
a random legal order (streams.py), so that a missing wait shows as wrong numbers. Freed memory is spoilt (memory.py).
A CUDA graph is a tape of what was enqueued, at the addresses that it had (graphs.py). What CUDA refuses is refused, and
launches, waits and copies are counted (machine.py). `fake_gpus` installs it (runtime.py), also in processes that are
started meanwhile.

It cannot show a kernel's own numerics, NCCL's transport, a driver's errors, or speed. Backpropagation calls autograd's
nodes one by one, without hooks. `module.to` makes new parameters, where a GPU would keep the objects. Whatever else it
does not model raises NotImplementedError.
"""

from tests.fake_cuda.machine import Counts, Machine, counting, machine
from tests.fake_cuda.runtime import fake_gpus

__all__ = ["Counts", "Machine", "counting", "fake_gpus", "machine"]
