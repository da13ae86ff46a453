"""Both simulators of Atari games, by their names, for tests that hold for both."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from accel_rl.emulator import state as words
from accel_rl.envs.batches.batch_simulator import BatchSimulator, make_simulator
from accel_rl.envs.batches.env_batch import BatchConfig, rollout_layout
from accel_rl.envs.games.atari import AtariSimulator
from accel_rl.envs.games.native import make_native

# Expensive tests run on one of them in `make test`.
NATIVE_FIRST = ["native", pytest.param("ale", marks=pytest.mark.slow)]
MAKE: dict[str, Callable[..., Any]] = {"native": make_native, "ale": AtariSimulator}


def ram(simulator: Any) -> np.ndarray:
    """Returns the 128 bytes of the console's memory."""
    if isinstance(simulator, AtariSimulator):
        return simulator.ale.getRAM()
    s = simulator._batch.words(simulator._env)
    return np.asarray(s[words.RAM : words.RAM + 128], np.uint8)


def rollouts(
    config: BatchConfig, num_envs: int = 2, horizon: int = 25, count: int = 3, wrong_actions: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """Yields copies of all arrays of some rollouts with random actions, `wrong_actions` of which do not exist."""
    spec = make_simulator(config.env, np.random.SeedSequence(0)).spec
    layout = rollout_layout(spec, horizon, num_envs)
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
    batch = BatchSimulator(config, arrays, first_env=0)
    batch.start()
    rng, num_actions = np.random.default_rng(0), int(cast(Discrete, spec.action_space).n)
    for _ in range(count):
        h = arrays["observation"].shape[0] - horizon
        arrays["observation"][:h] = arrays["observation"][horizon:].copy()
        arrays["reset"][0], arrays["age"][0] = arrays["reset"][horizon], arrays["age"][horizon]
        batch.begin()
        arrays["action"][:] = rng.integers(num_actions + wrong_actions, size=(horizon, num_envs))
        for t in range(horizon):
            batch.step(t)
        yield {name: array.copy() for name, array in arrays.items()}
        batch.pause()
