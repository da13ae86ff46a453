"""Loads kernels into NVIDIA's driver and launches them on PyTorch's current stream.

Tensors may also be on a CPU. Then the kernel's entry runs for one thread after another, in a given order if there is
one, so everything around the kernels can be tested without a GPU.
"""

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from accel_rl.emulator.cuda.compilation import PTX_VERSIONS, kernel_images
from accel_rl.emulator.cuda.memory import LANES, Kernel
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.errors import RunError, UsageError

MAX_THREADS = 2**31 - 1024  # the largest launch, whose thread numbers, up to the last whole block, fit into 32 bits
BLOCK = 32  # threads per block: one warp, so that few consoles still use all of a GPU's multiprocessors
_REGISTERS, _LOCAL_BYTES = 4, 3  # numbers of cuFuncGetAttribute
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # numbers of cuModuleLoadDataEx


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RunError(f"NVIDIA's driver cannot be loaded: {error}") from None


def _check(status: int, what: str, log: bytes = b"") -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        said = " ".join((text.value or b"unknown").decode().split())
        raise RunError(f"{what}: CUDA error {status} ({said}) {log.decode(errors='replace').strip()}".rstrip())


class LoadedKernel:
    """A kernel in the memory of the current GPU. image: a cubin, or PTX, which the driver compiles.

    Raises RunError if the driver refuses it."""

    def __init__(self, name: str, image: bytes):
        torch.zeros(1, device="cuda")  # makes PyTorch's context current
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._image = image + b"\0"
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        status = _driver().cuModuleLoadDataEx(ctypes.byref(self._module), self._image, 2, options, values)
        _check(status, f"loading {name}", log.value)
        status = _driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(status, f"finding {name}")
        self.registers, self.local_bytes = self._attribute(_REGISTERS), self._attribute(_LOCAL_BYTES)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        _check(_driver().cuFuncGetAttribute(ctypes.byref(value), number, self._function), "asking a kernel")
        return value.value

    def launch(self, threads: int, arguments: Sequence[Any], block: int = BLOCK) -> None:
        """Launches at least this many threads; arguments: CUDA tensors and ints, the entry's after `thread`."""
        words = (ctypes.c_int64 * 512)(*flat_arguments(arguments))
        at = ctypes.addressof(words)
        pointers = (ctypes.c_void_p * 512)(*range(at, at + 8 * 512, 8))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid = -(-threads // block)
        status = _driver().cuLaunchKernel(self._function, grid, 1, 1, block, 1, 1, 0, stream, pointers, None)
        _check(status, "launching a kernel")


def most_consoles(threads_each: int) -> int:
    """Returns the most consoles of a launch with this many threads for each."""
    return MAX_THREADS // threads_each // LANES * LANES


def interleave(states: torch.Tensor) -> torch.Tensor:
    """Returns states [n, STATE_WORDS] interleaved (memory.py), int32 [words]; zeros fill the last group of consoles."""
    padded = torch.nn.functional.pad(states, (0, 0, 0, -len(states) % LANES))
    return padded.view(-1, LANES, states.shape[1]).transpose(1, 2).reshape(-1)


def separate(words: torch.Tensor, num_envs: int) -> torch.Tensor:
    """Returns the states [num_envs, STATE_WORDS] of interleaved words."""
    return words.view(-1, STATE_WORDS, LANES).transpose(1, 2).reshape(-1, STATE_WORDS)[:num_envs]


def flat_arguments(arguments: Sequence[Any]) -> list[int]:
    """Returns a kernel's parameters: ints, and arrays as the fields that Numba passes (machine_code.py)."""
    flat: list[int] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            bytes_each = argument.element_size()
            flat += [0, 0, argument.numel(), bytes_each, argument.data_ptr(), *argument.shape]
            flat += [bytes_each * stride for stride in argument.stride()]
        else:
            flat.append(int(argument))
    return flat


def types_of(arguments: Sequence[Any]) -> tuple[str, ...]:
    """Returns the types of arguments as Numba writes them. Raises ValueError for a tensor that is not contiguous."""
    if any(isinstance(each, torch.Tensor) and not each.is_contiguous() for each in arguments):
        raise ValueError("kernels take contiguous tensors")
    return tuple(
        f"{str(each.dtype).removeprefix('torch.')}[{', '.join([':'] * (each.ndim - 1) + ['::1'])}]"
        if isinstance(each, torch.Tensor)
        else "int32"
        for each in arguments
    )


def run_on_cpu(kernel: Kernel, threads: Any, arguments: Sequence[Any]) -> None:
    """Runs a kernel for each of these threads in turn. arguments: tensors in the CPU's memory, and ints."""
    arrays = [each.numpy() if isinstance(each, torch.Tensor) else each for each in arguments]
    kernel(np.ascontiguousarray(threads, np.int32), *arrays)


class Launcher:
    """Launches a kernel where its tensors are: on a GPU, always the same one, or thread by thread on the CPU.

    The first launch on a GPU loads the kernel, and compiles it if needed. order: returns the order of the threads on
    the CPU for a number of threads; None: ascending. Raises ValueError for more than MAX_THREADS threads."""

    def __init__(self, kernel: Kernel, order: Callable[[int], Any] | None = None):
        self._kernel, self._order = kernel, order or np.arange
        self.loaded: LoadedKernel | None = None
        """The kernel on the GPU; None before the first launch"""

    def __call__(self, threads: int, *arguments: Any, block: int = BLOCK) -> None:
        if (types := types_of(arguments)) != self._kernel.types:
            raise TypeError(f"{self._kernel.__name__} takes {self._kernel.types}, not {types}")
        if threads > MAX_THREADS:
            raise ValueError(f"{self._kernel.__name__}: {threads} threads are more than {MAX_THREADS}")
        first = next(each for each in arguments if isinstance(each, torch.Tensor))
        if not first.is_cuda:
            run_on_cpu(self._kernel, self._order(threads), arguments)
            return
        with torch.cuda.device(first.device):
            self.loaded = self.loaded or load(self._kernel)
            self.loaded.launch(threads, arguments, block)


def load(kernel: Kernel) -> LoadedKernel:
    """Loads a kernel for the current GPU. Raises RunError if its driver refuses it."""
    return _load(kernel, torch.cuda.current_device())


@cache
def _load(kernel: Kernel, _gpu: int) -> LoadedKernel:
    *others, last = kernel_images(kernel, arch())
    for image in others:
        with contextlib.suppress(RunError):  # a cubin of another version than the driver's may fail
            return LoadedKernel(kernel.__name__, image)
    return LoadedKernel(kernel.__name__, last)


def arch() -> str:
    """Returns the architecture to compile for: the newest one, such as sm_90, whose code the current GPU runs."""
    return newest_arch(*torch.cuda.get_device_capability())


def newest_arch(major: int, minor: int) -> str:
    """Returns the newest architecture whose PTX runs on a GPU of this compute capability, as on all later GPUs. Raises
    UsageError for older GPUs."""
    known = [name for name in PTX_VERSIONS if int(name.removeprefix("sm_")) <= 10 * major + minor]
    if not known:
        raise UsageError(f"the emulator needs a GPU of compute capability 7.0 or newer; this one has {major}.{minor}")
    return known[-1]
