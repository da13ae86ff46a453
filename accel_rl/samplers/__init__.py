"""Samplers collect experience: SerialSampler steps environments in this process, AlternatingSampler in workers.

Both take the same arguments and return the same Rollout, bit for bit. Names are loaded lazily, since worker processes
import this package and must stay free of torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_rl.samplers.alternating import AlternatingSampler
    from accel_rl.samplers.serial import SerialSampler

__all__ = ["AlternatingSampler", "SerialSampler"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return getattr(importlib.import_module(f"accel_rl.samplers.{name.removesuffix('Sampler').lower()}"), name)
    raise AttributeError(f"module 'accel_rl.samplers' has no attribute {name!r}")
