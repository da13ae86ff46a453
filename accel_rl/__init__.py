"""Deep reinforcement learning at the speed of the simulators, on one machine with many cores.

    accel_rl.train(algo="a2c", env="pong", steps=1_000_000)   -> the run's folder
    accel_rl.load(run_folder).predict(observation)            -> an action, and a recurrent policy's state

Importing the package imports nothing heavy, since simulator processes also import it and must stay free of torch.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# How often OpenMP threads look for work before they sleep: often enough to bridge the gap between two layers of a
# network, not so often that simulators and other programs lose time. With 10,000, a single run on Pong is no faster,
# and two runs that share two cores are slower (0.8). Set it before torch loads OpenMP.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from accel_rl import algos as algos
    from accel_rl import envs as envs
    from accel_rl import samplers as samplers
    from accel_rl.analysis.trained_policy import load as load
    from accel_rl.distributed.launch import train as train

from accel_rl.version import __version__

__all__ = ["__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in ("train", "load"):
        module = importlib.import_module(
            "accel_rl.distributed.launch" if name == "train" else "accel_rl.analysis.trained_policy"
        )
        return getattr(module, name)
    if name in ("algos", "envs", "samplers"):
        return importlib.import_module(f"accel_rl.{name}")
    raise AttributeError(f"module 'accel_rl' has no attribute {name!r}")
