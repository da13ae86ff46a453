"""Makes simulators of gymnasium's and toy environments, and asserts that their states are exact."""

import pickle
from typing import Any

import gymnasium
import numpy as np

from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spec import EnvConfig
from tests.helpers.samplers import TOYS


def make(name: str, seed: int = 0, wrappers: tuple[str, ...] = (), **options: Any) -> tuple[GymSimulator, np.ndarray]:
    """Returns the simulator, and a row for it to write to."""
    env_id = name if "-v" in name else f"{TOYS}:{name}"
    simulator = GymSimulator(EnvConfig(env_id, options=options, wrappers=wrappers), np.random.SeedSequence(seed))
    return simulator, np.zeros(simulator.spec.row_shape, simulator.spec.row_dtype)


def trace(simulator: GymSimulator, row: np.ndarray, steps: int, seed: int = 0) -> list[Any]:
    """Returns the outcomes and rows of the next steps, resets included."""
    rng = np.random.default_rng(seed)
    space: Any = simulator.spec.action_space
    found: list[Any] = []
    for _ in range(steps):
        if isinstance(space, gymnasium.spaces.Box):
            action: Any = rng.normal(size=space.shape).astype(np.float32)
        else:
            action = rng.integers(space.nvec if hasattr(space, "nvec") else space.n)
        outcome = simulator.step(action, row)
        found.append((outcome, row.tobytes()))
        if outcome.game_over:
            simulator.reset(row)
            found.append(row.tobytes())
    return found


def assert_state_is_exact(name: str, steps: int, **options: Any) -> int:
    """Asserts that another simulator goes on from the state after some steps (0: before the first reset) like the one
    that saved it. Returns the size of the state in bytes."""
    (original, row), (copy, row_copy) = make(name, 1, **options), make(name, 2, **options)
    if steps:
        original.reset(row)
        trace(original, row, steps)
    state = pickle.dumps(original.get_state())
    copy.set_state(pickle.loads(state))
    if not steps:
        original.reset(row)
        copy.reset(row_copy)
    assert trace(original, row, 120, seed=7) == trace(copy, row_copy, 120, seed=7)
    return len(state)
