"""Steps environments in this process with random actions and does nothing else, to measure a simulator alone.

It imports no torch, like the sampler's worker processes.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from accel_rl.emulator import BatchAtari
from accel_rl.emulator.steps import GAME_OVER
from accel_rl.envs import EnvConfig, make_simulator
from accel_rl.envs.games.atari import AtariSimulator, game_name, make_options
from accel_rl.envs.games.emulator_choice import is_native
from accel_rl.envs.games.native import NativeBatch
from accel_rl.envs.spaces.conversion import from_env_action
from accel_rl.envs.spec import Simulator

NUM_DRAWN = 1000  # actions per environment that are drawn in advance; then they repeat

Work = Callable[[], int]


def bare_steps(env: EnvConfig, num_envs: int, seed: int = 0) -> Work:
    """Returns a function that steps all environments once and returns their number.

    Emulation, frames and resets are those of the sampler's workers; Atari games start from prepared states. With the
    same seed, both simulators of Atari games play the same games."""
    seeds = np.random.SeedSequence(seed).spawn(num_envs)
    if is_native(env):
        return _native_steps(env, seeds, seed)
    return _single_steps([make_simulator(env, each, reserve=True) for each in seeds], seed)


def bare_emulation(env: EnvConfig, num_envs: int) -> Work:
    """Returns a function that plays a step's frames in each of several Atari games and returns the number of games.

    It makes no observations."""
    if is_native(env):
        return _native_emulation(env, num_envs)
    simulators = [make_simulator(env, seed, reserve=True) for seed in np.random.SeedSequence(0).spawn(num_envs)]
    row = np.zeros(simulators[0].spec.row_shape, simulators[0].spec.row_dtype)
    for simulator in simulators:
        simulator.reset(row)
    actions = draw_actions(simulators[0].spec.action_space, num_envs, 0)

    def emulate() -> int:
        for simulator, action in zip(simulators, next(actions), strict=True):
            assert isinstance(simulator, AtariSimulator)
            ale = simulator.ale
            press = ale.getMinimalActionSet()[action]
            for _ in range(simulator.options.frame_skip):
                ale.act(press)
            if ale.game_over():
                simulator.reset(row)
        return num_envs

    return emulate


def draw_actions(space: Any, num_envs: int, seed: int) -> Iterator[list[Any]]:
    """Yields a random action for each environment, again and again; NUM_DRAWN of them are drawn in advance."""
    space.seed(seed)
    drawn = [[from_env_action(space.sample(), space) for _ in range(num_envs)] for _ in range(NUM_DRAWN)]
    return itertools.cycle(drawn)


def _single_steps(simulators: Sequence[Simulator], seed: int) -> Work:
    spec = simulators[0].spec
    memory = np.zeros((len(simulators), *spec.row_shape), spec.row_dtype)
    rows = [memory[column, ...] for column in range(len(simulators))]  # the ellipsis makes a view, also of scalar rows
    for simulator, row in zip(simulators, rows, strict=True):
        simulator.reset(row)
    actions = draw_actions(spec.action_space, len(simulators), seed)

    def step() -> int:
        for simulator, row, action in zip(simulators, rows, next(actions), strict=True):
            if simulator.step(action, row).game_over:
                simulator.reset(row)
        return len(simulators)

    return step


def _native_steps(env: EnvConfig, seeds: Sequence[np.random.SeedSequence], seed: int) -> Work:
    game, options, num_envs = str(game_name(env.env_id)), make_options(env.preset, env.options), len(seeds)
    batch = NativeBatch(game, options, seeds, reserve=True)
    frames = np.zeros((num_envs, *batch.spec.row_shape), np.uint8)
    play = batch.bind_step(frames, np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int64))
    for column in range(num_envs):
        batch.reset_one(column, frames[column])
    batch.stepping[:] = True
    actions = draw_actions(batch.spec.action_space, num_envs, seed)

    def step() -> int:
        batch.set_actions(np.array(next(actions)))
        if play():
            for column in np.flatnonzero(batch.events & GAME_OVER).tolist():
                batch.reset_one(column, frames[column])
            batch.stepping[:] = True
        return num_envs

    return step


def _native_emulation(env: EnvConfig, num_envs: int) -> Work:
    options = make_options(env.preset, env.options)
    batch = BatchAtari(str(game_name(env.env_id)), num_envs, seed=1, frame_skip=options.frame_skip, draw=False)
    batch.reset()
    actions = draw_actions(gymnasium.spaces.Discrete(len(batch.actions)), num_envs, 0)

    def emulate() -> int:
        arrays = batch.step(np.array(next(actions)))
        if arrays.ends.any():
            batch.reset(arrays.terminated | arrays.truncated)
        return batch.num_envs

    return emulate
