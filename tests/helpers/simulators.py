"""Both simulators of Atari games, by their names, for tests that hold for each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from accel_rl.emulator import state as words
from accel_rl.envs.atari import AtariSimulator
from accel_rl.envs.native import make_native

MAKE: dict[str, Callable[..., Any]] = {"native": make_native, "ale": AtariSimulator}


def ram(simulator: Any) -> np.ndarray:
    """Returns the 128 bytes of the console's memory."""
    if isinstance(simulator, AtariSimulator):
        return simulator.ale.getRAM()
    s = simulator._batch.words(simulator._env)
    return np.asarray(s[words.RAM : words.RAM + 128], np.uint8)


def lives(simulator: Any) -> int:
    """Returns the lives that are left, as the emulator says."""
    return int(simulator.ale.lives() if isinstance(simulator, AtariSimulator) else simulator.lives)
