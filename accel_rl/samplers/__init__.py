"""Where experience comes from: SerialSampler steps environments in this process, AlternatingSampler in workers.

Both take the same arguments and return the same Rollout, bit for bit. Names are loaded lazily, since worker processes
import this package and must stay free of torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_rl.rollout import Game, Rollout
    from accel_rl.samplers.alternating import AlternatingSampler
    from accel_rl.samplers.base import GamesToPlay, Sampler, SamplerConfig, StepHook
    from accel_rl.samplers.serial import SerialSampler

__all__ = [
    "AlternatingSampler",
    "Game",
    "GamesToPlay",
    "Rollout",
    "Sampler",
    "SamplerConfig",
    "SerialSampler",
    "StepHook",
]

_MODULES = {
    "AlternatingSampler": "accel_rl.samplers.alternating",
    "SerialSampler": "accel_rl.samplers.serial",
    "GamesToPlay": "accel_rl.samplers.base",
    "Sampler": "accel_rl.samplers.base",
    "SamplerConfig": "accel_rl.samplers.base",
    "StepHook": "accel_rl.samplers.base",
    "Game": "accel_rl.rollout",
    "Rollout": "accel_rl.rollout",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'accel_rl.samplers' has no attribute {name!r}")
