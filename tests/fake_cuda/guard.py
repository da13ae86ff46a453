"""Makes PyTorch's C++ side accept tensors on cuda devices, in builds with CUDA (but no GPU) and without."""

import ctypes
from pathlib import Path

import torch

CUDA = 1  # c10::DeviceType
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # an array of pointers, by device type

_count_devices = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda guard: 0)
_methods = (ctypes.c_void_p * 64)(*[ctypes.cast(_count_devices, ctypes.c_void_p).value] * 64)
_guard_without_devices = ctypes.c_void_p(ctypes.addressof(_methods))


def set_guard() -> None:
    """Sets the guard that changes no device, PyTorch's own for tracing without a GPU.

    PyTorch sets it in place of a guard that counts 0 devices. A build without CUDA has none at all, and gets one first,
    which can do nothing but count."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (CUDA + 1)).in_dll(library, REGISTRY)
    if guards[CUDA] is None:
        guards[CUDA] = ctypes.addressof(_guard_without_devices)
    torch._C._ensureCUDADeviceGuardSet()
