"""Replaces torch.cuda by the fake GPUs, and restores it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.fake_cuda import generators, graphs, memory, nccl, streams
from tests.fake_cuda.generators import Generator, default_generator
from tests.fake_cuda.guard import set_guard
from tests.fake_cuda.machine import CAPACITY, MACHINE, Gpu, Machine, machine
from tests.fake_cuda.streams import Queue, gpu_index
from tests.fake_cuda.tensors import GpuMode

VARIABLE = "ACCEL_RL_FAKE_GPUS"  # processes that inherit it install the fake GPUs when they import torch
STARTUP = Path(__file__).parent / "startup"
ROOT = Path(__file__).parents[2]


class Properties:
    """torch.cuda.get_device_properties."""

    def __init__(self, index: int):
        self.name, self.major, self.minor = f"fake GPU {index}", *machine().capability
        self.total_memory, self.multi_processor_count = CAPACITY, 1
        self.pci_domain_id, self.pci_bus_id, self.pci_device_id = 0xFFFF, index, 0
        self.uuid = f"fake-{index}"


def _set_device(device: Any) -> None:
    index = torch.cuda._utils._get_device_index(device)  # raises ValueError for "cuda", as it should
    if index >= 0:
        machine().device = gpu_index(index)


class _Device:
    """torch.cuda.device."""

    def __init__(self, device: Any):
        self.index = gpu_index(device)

    def __enter__(self) -> None:
        self.before, machine().device = machine().device, self.index

    def __exit__(self, *_: object) -> None:
        machine().device = self.before


def _allocated(device: Any = None) -> int:
    return machine().gpus[gpu_index(device)].allocated


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    gpu = machine().gpus[gpu_index(device)]
    return CAPACITY - gpu.allocated, CAPACITY


def _set_sync_debug_mode(mode: Any) -> None:
    machine().sync_debug_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode)


def _manual_seed_all(seed: int) -> None:
    for generator in generators.defaults:
        generator.manual_seed(seed)


def _lazy_init() -> None:
    machine().is_initialized = True


FUNCTIONS: dict[str, Any] = {
    "_lazy_init": _lazy_init,
    "init": _lazy_init,
    "is_available": lambda: machine().num_gpus > 0,
    "is_initialized": lambda: machine().is_initialized,
    "is_bf16_supported": lambda including_emulation=True: True,
    "device_count": lambda: machine().num_gpus,
    "current_device": lambda: machine().device,
    "set_device": _set_device,
    "device": _Device,
    "get_arch_list": lambda: ["sm_80", "sm_90"],
    "get_device_capability": lambda device=None: machine().capability,
    "get_device_name": lambda device=None: Properties(gpu_index(device)).name,
    "get_device_properties": lambda device=None: Properties(gpu_index(device)),
    "Stream": streams.Stream,
    "Event": streams.Event,
    "stream": streams.stream,
    "current_stream": streams.current_stream,
    "default_stream": streams.default_stream,
    "synchronize": streams.synchronize,
    "CUDAGraph": graphs.CUDAGraph,
    "graph_pool_handle": graphs.graph_pool_handle,
    "is_current_stream_capturing": lambda: machine().gpu.current.capture is not None,
    "cudart": memory.Cudart,
    "empty_cache": graphs.empty_cache,
    "mem_get_info": _mem_get_info,
    "memory_allocated": _allocated,
    "memory_reserved": _allocated,
    "max_memory_allocated": _allocated,
    "reset_peak_memory_stats": lambda device=None: None,
    "manual_seed": lambda seed: default_generator().manual_seed(seed),
    "manual_seed_all": _manual_seed_all,
    "get_rng_state": lambda device=None: default_generator(device).get_state(),
    "set_rng_state": lambda state, device=None: default_generator(device).set_state(state),
    "set_sync_debug_mode": _set_sync_debug_mode,
    "get_sync_debug_mode": lambda: machine().sync_debug_mode,
    "_sleep": lambda cycles: None,
}


PRIVATE: dict[str, Any] = {
    "_host_emptyCache": lambda: None,
    "_cuda_endAllocateToPool": graphs.end_allocate_to_pool,
    "_cuda_releasePool": graphs.release_pool,
}


@contextlib.contextmanager
def fake_gpus(num_gpus: int = 1, seed: int | None = None) -> Iterator[Machine]:
    """Installs fake GPUs for a block, in this process and in those started within it.

    seed: of a random legal order of their work; None: as late as is legal."""
    inherited = f"{num_gpus},{'' if seed is None else seed}"
    path = os.pathsep.join([str(STARTUP), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(os.environ, {VARIABLE: inherited, "PYTHONPATH": path}))
        sys.path.insert(0, str(STARTUP))  # learners get this process's path; some systems have another sitecustomize
        stack.callback(sys.path.remove, str(STARTUP))
        yield stack.enter_context(_installed(num_gpus, seed))


def install_here(inherited: str) -> None:
    """Installs fake GPUs in this process permanently; inherited: the variable's value."""
    num_gpus, seed = inherited.split(",")
    installed = _installed(int(num_gpus), int(seed) if seed else None)
    installed.__enter__()
    _forever.append(installed)


_forever: list[Any] = []


@contextlib.contextmanager
def _installed(num_gpus: int, seed: int | None) -> Iterator[Machine]:
    before = getattr(MACHINE, "now", None)
    MACHINE.now = now = Machine(num_gpus, seed)
    now.gpus = [Gpu(index, Queue(index, f"default stream of cuda:{index}")) for index in range(num_gpus)]
    set_guard()
    conversion = torch.__future__.get_overwrite_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    tensor_methods = {"pin_memory": memory.pin, "is_pinned": lambda tensor, device=None: memory.is_pinned(tensor)}
    try:
        with (
            replaced(vars(torch.cuda), FUNCTIONS, torch.cuda),
            replaced(vars(torch), {"Generator": Generator}, torch),
            replaced(vars(torch._C), PRIVATE, torch._C),
            replaced(vars(torch.Tensor), tensor_methods, torch.Tensor),
            nccl.over_gloo(),
        ):
            generators.defaults[:] = [Generator(f"cuda:{index}") for index in range(num_gpus)]
            with GpuMode():
                yield now
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(conversion)
        if before is None:
            del MACHINE.now
        else:
            MACHINE.now = before


@contextlib.contextmanager
def replaced(names: Any, values: dict[str, Any], owner: Any = None) -> Iterator[None]:
    """Sets names in a mapping, or as attributes of `owner`, for a block."""
    before = {name: names.get(name) for name in values}
    present = {name for name in values if name in names}

    def put(name: str, value: Any) -> None:
        if owner is None:
            names[name] = value
        else:
            setattr(owner, name, value)

    for name, value in values.items():
        put(name, value)
    try:
        yield
    finally:
        for name in values:
            if name in present:
                put(name, before[name])
            elif owner is None:
                del names[name]
            else:
                delattr(owner, name)
