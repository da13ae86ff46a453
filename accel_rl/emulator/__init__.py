"""An Atari 2600 that is equal to ale-py's, bit by bit, for many environments at once; usable without the rest."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_rl.emulator.batch import BatchArrays, BatchAtari
    from accel_rl.emulator.vector_env import AtariVectorEnv

__all__ = ["AtariVectorEnv", "BatchArrays", "BatchAtari"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "vector_env" if name == "AtariVectorEnv" else "batch"
    return getattr(importlib.import_module(f"accel_rl.emulator.{module}"), name)
