"""An Atari 2600 equal to ale-py's, bit for bit, for many environments at once. It needs no other part of accel_rl."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_rl.emulator.batch import BatchAtari
    from accel_rl.emulator.consoles import BatchArrays
    from accel_rl.emulator.cuda.atari import CudaAtari
    from accel_rl.emulator.vector_env import AtariVectorEnv

__all__ = ["AtariVectorEnv", "BatchArrays", "BatchAtari", "CudaAtari"]
_MODULES = {
    "AtariVectorEnv": "vector_env",
    "BatchArrays": "consoles",
    "BatchAtari": "batch",
    "CudaAtari": "cuda.atari",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"accel_rl.emulator.{_MODULES[name]}"), name)
