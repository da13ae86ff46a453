"""The contestants of the benchmark of emulators on one core, and what it measures besides."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ale_py
import numpy as np

from accel_rl.bench.timing import Repeated
from accel_rl.emulator import BatchAtari
from accel_rl.emulator.core import command
from accel_rl.envs import EnvConfig
from accel_rl.envs.batch_simulator import BatchConfig, BatchSimulator, rollout_layout
from accel_rl.envs.spec import EnvSpec

FRAMES_AT_ONCE = 200
HELD_FRAMES = 4  # with one action
DRAWN = {"undrawn": 0, "every-4th": 4, "every": 1}  # draws every so many frames; 0: none


def raw_builders(game: str) -> list[Callable[[], Repeated]]:
    """Returns what builds ale-py (`ale`), which draws every frame, and this project's emulator, which draws none, every
    fourth, or every frame. All play the same random actions; rates are in frames/s."""
    minimal = BatchAtari(game, 1).actions
    native = [partial(_native_frames, name, game, minimal, every) for name, every in DRAWN.items()]
    return [partial(_ale_frames, game, minimal), *native]


def _ale_frames(game: str, minimal: Sequence[int]) -> Repeated:
    actions = _random_actions(minimal)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 1)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(Path(str(ale_py.roms.get_rom_path(game))))

    def play() -> int:
        for action in itertools.islice(actions, FRAMES_AT_ONCE):
            ale.act(action)
            if ale.game_over():
                ale.reset_game()
        return FRAMES_AT_ONCE

    return Repeated("ale", play)


def _native_frames(name: str, game: str, minimal: Sequence[int], draw_every: int) -> Repeated:
    actions = _random_actions(minimal)
    atari = BatchAtari(game, 1, seed=1, full_action_space=True)
    atari.reset()
    chosen = np.zeros(1, np.int32)

    def play() -> int:
        for frame, action in enumerate(itertools.islice(actions, FRAMES_AT_ONCE)):
            chosen[0] = action
            if atari.step(chosen, draw=draw_every > 0 and frame % draw_every == 0).ends.any():
                atari.reset()
        return FRAMES_AT_ONCE

    return Repeated(name, play)


def _random_actions(actions: Sequence[int]) -> Iterator[int]:
    rng = np.random.default_rng(1)
    while True:
        for action in rng.choice(actions, 1000).tolist():
            yield from (action,) * HELD_FRAMES


def python_us_per_step(env: EnvConfig, spec: EnvSpec, num_envs: int, rollouts: int, horizon: int) -> list[float]:
    """Returns, for each rollout, the microseconds per environment and step that a worker spends outside of compiled
    calls.

    env: a game on the native simulator. What a call itself costs, about a microsecond, counts as compiled."""
    with _timed_calls() as compiled_s:
        arrays = {
            name: np.zeros(shape, dtype) for name, (shape, dtype) in rollout_layout(spec, horizon, num_envs).items()
        }
        batch = BatchSimulator(BatchConfig(env, seed=0, reset_mode="reserve"), arrays, 0)
        batch.start()
        rng, num_actions = np.random.default_rng(0), int(getattr(spec.action_space, "n", 0))
        found = []
        for _ in range(rollouts):
            arrays["action"][:] = rng.integers(num_actions, size=(horizon, num_envs))
            before, start = sum(compiled_s), time.perf_counter()
            batch.begin()
            for t in range(horizon):
                batch.step(t)
            batch.pause()
            found.append((time.perf_counter() - start - (sum(compiled_s) - before)) / (horizon * num_envs) * 1e6)
    batch.close()
    return found


@contextmanager
def _timed_calls() -> Iterator[list[float]]:
    """Yields a list to which the compiled calls that are bound meanwhile add their durations in seconds."""
    durations: list[float] = []
    bind = command.bind

    def timed_bind(*arguments: Any) -> Callable[[], Any]:
        call = bind(*arguments)

        def timed() -> Any:
            start = time.perf_counter()
            result = call()
            durations.append(time.perf_counter() - start)
            return result

        return timed

    command.bind = timed_bind
    try:
        yield durations
    finally:
        del command.bind
