"""Consoles with the same cartridge, and the arrays and commands of a batch."""

import hashlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_rl.emulator import state as words
from accel_rl.emulator.cartridges import KINDS, identify, prepare
from accel_rl.emulator.controllers import NUM_ACTIONS
from accel_rl.emulator.core import LOOK, POWER_ON, RESET, command
from accel_rl.emulator.mt19937 import GENERATOR_WORDS, SIZE
from accel_rl.emulator.palette import grey_palette, rgb_palette
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.resets import reset_program
from accel_rl.emulator.rules import known_games, rules_for
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.emulator.steps import PICTURE
from accel_rl.errors import RunError, UsageError, unknown

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

MOST = 2**31 - 1  # the state's words are int32
TIME_SEED = -1  # with this seed, ale-py draws other sticky actions each time
_ACTION_GENERATOR = slice(words.ACTION_GENERATOR, words.ACTION_GENERATOR + GENERATOR_WORDS)
# Words that a reset neither writes nor reads (the agent's), or rarely (the generator of sticky actions).
_KEPT_BY_RESET = np.r_[words.PRESSED : words.RULES, _ACTION_GENERATOR]
_DECIDES_RESET = np.setdiff1d(np.arange(words.HISTORY), _KEPT_BY_RESET)
_INTS, _BYTES = np.zeros(1, np.int32), np.zeros(1, np.uint8)
NO_AGENT = (
    *(_INTS, _BYTES, _INTS, _BYTES[None], _BYTES[None]),
    *(np.zeros(1, np.float32), np.zeros(1, np.int64), _INTS[None], _INTS),
)
"""Placeholders for the arrays of an agent's game, for orders that do not use them."""


@dataclass
class BatchArrays:
    """The arrays that a batch writes its results to. They must be C-contiguous, and may lie in shared memory.

    frames: uint8 [num_envs, height, 160], palette indices; resets and steps that draw write them. rewards: int32
    [num_envs], raw, summed over the frames of a step. ends: bool [2, num_envs]: terminated, truncated. lives: int32
    [num_envs]."""

    frames: Bytes
    rewards: Ints
    ends: Bools
    lives: Ints

    def check(self, num_envs: int, height: int) -> None:
        """Raises UsageError for arrays that a batch cannot write into."""
        expected = {
            "frames": (np.uint8, (num_envs, height, LINE_PIXELS)),
            "rewards": (np.int32, (num_envs,)),
            "ends": (np.bool_, (2, num_envs)),
            "lives": (np.int32, (num_envs,)),
        }
        for name, (dtype, shape) in expected.items():
            check_array(f"arrays.{name}", getattr(self, name), dtype, shape)

    @property
    def terminated(self) -> Bools:
        """Returns which games are over."""
        return np.asarray(self.ends[0])

    @property
    def truncated(self) -> Bools:
        """Returns which games have reached max_episode_frames."""
        return np.asarray(self.ends[1])


def check_array(name: str, array: npt.NDArray[Any], dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
    """Raises UsageError for an array that compiled code cannot write into."""
    fits = array.dtype == dtype and array.shape == shape
    if not (fits and array.flags.c_contiguous and array.flags.writeable):
        wanted = f"writable C-contiguous {np.dtype(dtype).name} {list(shape)}"
        raise UsageError(f"{name} must be {wanted}, not {array.dtype} {list(array.shape)}")


class Consoles:
    """The num_envs consoles of a batch, powered on, with one game's cartridge.

    Arguments are those of BatchAtari. Raises UsageError for an unknown game, ROM or option, or if Numba is missing or
    too old."""

    def __init__(
        self,
        game: str | Path,
        num_envs: int,
        *,
        seed: int | Sequence[int] = 0,
        repeat_action_probability: float = 0.0,
        max_episode_frames: int = 0,
        full_action_space: bool = False,
        draw: bool = False,
        arrays: BatchArrays | None = None,
    ):
        check_integers(1, num_envs=num_envs)
        check_integers(0, max_episode_frames=max_episode_frames)
        if not 0 <= repeat_action_probability <= 1:
            raise UsageError(f"repeat_action_probability={repeat_action_probability} must be from 0 to 1")
        seeds = np.asarray(seed)
        fits = seeds.shape in ((), (num_envs,)) and seeds.dtype.kind in "iu"
        if not fits or (seeds < -MOST - 1).any() or (seeds > MOST).any():
            raise UsageError(f"seed={seed} must be an integer from {-MOST - 1} to {MOST}, or one for each environment")
        self.num_envs, self.draw = num_envs, draw
        rom = read_rom(game)
        self.rules = rules_for(hashlib.md5(rom).hexdigest())
        self.actions = tuple(range(NUM_ACTIONS)) if full_action_space else self.rules.actions
        """ale-py's numbers for the actions 0, 1, ... of `step`"""
        legal = self.rules.legal_actions
        self.action_numbers = np.array([number if number in legal else 0 for number in self.actions], np.int32)
        """The same, with 0 for actions that have no effect in this game"""
        kind = KINDS.index(identify(rom))
        height = self.rules.height
        self.arrays = arrays or BatchArrays(
            np.zeros((num_envs, height, LINE_PIXELS), np.uint8),
            np.zeros(num_envs, np.int32),
            np.zeros((2, num_envs), np.bool_),
            np.zeros(num_envs, np.int32),
        )
        self.arrays.check(num_envs, height)
        self.rom = prepare(rom)
        """The cartridge's bytes, uint8; a 2 KB ROM is repeated"""
        self._states = np.zeros((num_envs, STATE_WORDS), np.int32)
        self._screens = np.zeros((num_envs, 3 * PICTURE), np.uint8)  # steps.py uses the third one
        self._mask, self._numbers = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.int32)
        self._calls: dict[tuple[int, int, bool], Callable[[], int]] = {}
        self._settings = self._make_settings(kind, repeat_action_probability, max_episode_frames)
        self._choose_mode()
        self._power_on(np.ones(num_envs, np.bool_), seeds)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes to copy: all but the bound calls, which write to this object's arrays."""
        return {**self.__dict__, "_calls": {}}

    @property
    def ram(self) -> Bytes:
        """Returns a copy of the consoles' memory, uint8 [num_envs, 128]."""
        return self._states[:, words.RAM : words.RAM + 128].astype(np.uint8)

    def screens(self) -> Bytes:
        """Returns the last frame of each environment, uint8 [num_envs, height, 160]: palette indices.

        Frames that no step has drawn are drawn now."""
        self._command(LOOK, draw=True)
        return self.arrays.frames.copy()

    def screen(self, env: int) -> Bytes:
        """Returns the last frame of one environment in color, uint8 [height, 160, 3].

        Raises UsageError if there is no such environment."""
        self._command(LOOK, self._only(env), draw=True)
        return np.asarray(self.palette(env)[self.arrays.frames[env]])

    def palette(self, env: int = 0) -> Bytes:
        """Returns the color of each index, uint8 [256, 3]: `palette()[screens()]` are RGB pictures."""
        return rgb_palette(bool(self._states[env, words.PAL]))

    def grey_palette(self, env: int = 0) -> Bytes:
        """Returns the gray value of each index, uint8 [256]."""
        return grey_palette(bool(self._states[env, words.PAL]))

    def words(self, env: int) -> Ints:
        """Returns the state of an environment's console, int32 [STATE_WORDS], not copied; state.py explains it."""
        return np.asarray(self._states[env])

    def _choose_mode(self, mode: int | None = None, difficulty: int | None = None) -> None:
        """Sets the mode and difficulty for later resets; None: the game's first mode and difficulty 0, as in ale-py.

        Raises UsageError for a number that the game does not have."""
        rules = self.rules
        for name, value, known in (("mode", mode, rules.modes), ("difficulty", difficulty, rules.difficulties)):
            if value is not None and value not in known:
                raise UsageError(f"{rules.name} has no {name} {value}, but {', '.join(map(str, known))}")
        self._program = reset_program(rules, rules.modes[0] if mode is None else mode)
        self._states[:, words.DIFFICULTY] = difficulty or 0
        self._calls.clear()

    def _only(self, env: int) -> Bools:
        """Returns the mask of one environment. Raises UsageError if there is none with this number."""
        if not 0 <= env < self.num_envs:
            raise UsageError(f"env={env}: the environments of this batch are 0 to {self.num_envs - 1}")
        return self._mask_of([env])

    def _mask_of(self, envs: npt.ArrayLike) -> Bools:
        return np.isin(np.arange(self.num_envs), envs)

    def _power_on(self, mask: Bools, seeds: npt.ArrayLike) -> None:
        """Powers consoles on and resets them, as ale-py's loadROM does.

        It runs one console and copies it, since consoles differ only in their seeds."""
        envs = np.flatnonzero(mask)
        self._states[envs[0]] = self._settings
        self._command(POWER_ON, self._mask_of(envs[:1]))
        self._states[envs] = self._states[envs[0]]
        seeds = np.broadcast_to(seeds, self.num_envs)
        self._states[envs, _ACTION_GENERATOR] = [_seeded_generator(int(seeds[env])) for env in envs]
        self._reset(mask)

    def _reset(self, mask: Bools | None) -> None:
        """Starts games. If consoles are equal, as after `_power_on`, it resets one and copies the result."""
        envs = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        first, others = envs[:1], envs[1:]
        deciding = self._states[np.ix_(envs, _DECIDES_RESET)]
        if not len(others) or (deciding != deciding[0]).any():
            self._run_reset(mask)
            return
        generator = self._states[first, _ACTION_GENERATOR].copy()
        self._run_reset(self._mask_of(first))
        if (self._states[first, _ACTION_GENERATOR] != generator).any():  # the others draw other numbers
            self._run_reset(self._mask_of(others))
            return
        kept = self._states[np.ix_(others, _KEPT_BY_RESET)]
        self._states[others] = self._states[first]
        self._states[np.ix_(others, _KEPT_BY_RESET)] = kept
        results = self.arrays
        written: list[npt.NDArray[Any]] = [self._screens, results.rewards, results.ends.T, results.lives]
        for array in [*written, results.frames] if self.draw else written:
            array[others] = array[first]

    def _run_reset(self, mask: Bools | None) -> None:
        failed = self._command(RESET, mask, draw=self.draw)
        if failed >= 0:
            raise RunError(f"environment {failed}: {self.rules.name} did not get ready within its reset")

    def _make_settings(self, kind: int, repeat_action_probability: float, max_episode_frames: int) -> Ints:
        """Returns a state in which only the words that never change are set."""
        repeated_draws = math.ceil(float(np.float32(repeat_action_probability)) * 2**32)
        settings: dict[int, Any] = {
            words.CARTRIDGE: kind,
            words.FIRST_LINE: self.rules.first_line,
            words.NUM_LINES: self.rules.height,
            words.COMB: self.rules.comb,
            words.PADDLES: self.rules.paddles,
            words.PADDLE_MAX: self.rules.paddle_max,
            words.SWAPPED_PORTS: self.rules.swapped_ports,
            words.MAX_EPISODE_FRAMES: max_episode_frames,
            words.REPEATS: repeated_draws > 0,
            words.REPEAT_LIMIT: np.array(max(repeated_draws - 1, 0), np.uint32).astype(np.int32),
        }
        state = np.zeros(STATE_WORDS, np.int32)
        for word, value in settings.items():
            state[word] = value
        return state

    def _command(
        self, order: int, mask: Bools | None = None, actions: npt.ArrayLike = 0, count: int = 1, draw: bool = False
    ) -> int:
        """Gives an order to the environments in the mask (None: all); returns the one that failed, or -1."""
        self._mask[:] = True if mask is None else mask
        self._numbers[:] = actions
        key = order, count, draw
        if key not in self._calls:
            self._calls[key] = self._bind(*key, self.arrays.frames, NO_AGENT)
        return self._calls[key]()

    def _bind(
        self, order: int, count: int, draw: bool, frames: Bytes, agent_arrays: tuple[npt.NDArray[Any], ...]
    ) -> Callable[[], int]:
        """Returns a call that gives an order to the environments in self._mask with self._numbers. See core.py.

        agent_arrays: further arguments of the orders of an agent's game."""
        held = (self._mask, self._numbers, self._states, self.rom, self._screens, self.rules.code, self._program)
        arrays = self.arrays
        results = (frames.reshape(self.num_envs, -1), arrays.rewards, arrays.ends, arrays.lives)
        call: Callable[[], int] = command.bind(order, count, draw, *held, *results, *agent_arrays)
        return call


def _seeded_generator(seed: int) -> Ints:
    """Returns the words of mt19937.py's generator for a 32-bit seed; TIME_SEED gives a random one."""
    generator = np.random.RandomState(None if seed == TIME_SEED else seed % 2**32).get_state(legacy=False)
    return np.append(generator["state"]["key"], np.uint32(SIZE)).astype(np.int32)


def check_integers(least: int, **values: Any) -> None:
    """Raises UsageError unless a value is an integer from least to MOST."""
    for name, value in values.items():
        try:
            fits = least <= operator.index(value) <= MOST
        except TypeError:
            fits = False
        if not fits:
            raise UsageError(f"{name}={value!r} must be an integer from {least} to {MOST}")


def read_rom(game: str | Path) -> bytes:
    """Returns the bytes of ale-py's ROM of a game (pong, ALE/Pong-v5), or of a ROM file."""
    by_id = {f"ale/{name.replace('_', '')}-v5": name for name in known_games()}
    game = by_id.get(str(game).lower(), game)
    if str(game) not in known_games():
        path = Path(game)
        if path.suffix != ".bin" and not path.exists():
            raise unknown("game", str(game), known_games(), "(or give the path of its ROM)")
    else:
        try:
            import ale_py
        except ImportError:
            raise UsageError(f"the ROM of {game} comes with ale-py (pip install ale-py)") from None
        path = Path(str(ale_py.roms.get_rom_path(str(game))))
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the ROM {path}: {error.strerror}") from None
