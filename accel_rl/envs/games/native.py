"""Runs Atari games on the project's own emulator: one compiled call steps many environments.

The rules of a step are in emulator/steps.py. With the same seed, frames, rewards, lives, ends and random numbers equal
those of AtariSimulator (atari.py).
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from accel_rl.config.atari_options import AtariOptions
from accel_rl.emulator import state as words
from accel_rl.emulator import steps
from accel_rl.emulator.consoles import Consoles, check_array
from accel_rl.emulator.core import AGENT_STEP, START_GAME
from accel_rl.emulator.frame_making import FramePlan
from accel_rl.emulator.pcg64 import to_numpy_state, to_words
from accel_rl.emulator.rules import ACTIONS, GameRules, rules_for
from accel_rl.envs.games.atari import NUM_STARTS, atari_spec, why_no_reserve
from accel_rl.envs.games.atari_states import GENERATOR, is_native_state, pack, to_native, unpack
from accel_rl.envs.spec import Array, Outcome
from accel_rl.errors import RunError, UsageError

RANDOM_NOOPS = -1
# A prepared start leaves these unchanged: the generators, the number of games, and which picture is painted.
_KEPT = np.r_[
    words.SYSTEM_GENERATOR : words.SYSTEM_GENERATOR + 625,
    words.ACTION_GENERATOR : words.ACTION_GENERATOR + 625,
    GENERATOR,
    words.NUM_STARTS,
    words.FRAME_BUFFER,
]


class Start(NamedTuple):
    """A state right after a reset, with its first frame."""

    words: Array
    frame: Array


@functools.cache
def start_states(game: str, options: AtariOptions) -> list[list[Start]]:
    """Returns the same prepared starts as atari.start_states, as states of this emulator."""
    batch = NativeBatch(game, options, [np.random.SeedSequence(0)])
    copies = -(-NUM_STARTS // (options.noop_max + 1))
    return [[batch.make_start(noops) for _ in range(copies)] for noops in range(options.noop_max + 1)]


class NativeBatch(Consoles):
    """A simulator of several environments of one Atari game. Raises UsageError like Consoles.

    seeds: one for each environment, as for AtariSimulator. reserve: resets restore prepared states where these can
    replace real ones. counters: int32 [3, k]: raw score and length in steps of each game, age in steps of each episode;
    a step increments them. stepping: bool [k], the environments that a step advances. events: int32 [k]: the endings in
    a step, as bits of emulator/steps.py."""

    def __init__(
        self, game: str, options: AtariOptions, seeds: Sequence[np.random.SeedSequence], reserve: bool = False
    ):
        rngs = [np.random.default_rng(seed) for seed in seeds]
        super().__init__(game, len(seeds), seed=[int(rng.integers(2**31 - 1)) for rng in rngs])
        self._states[:, GENERATOR] = [to_words(rng) for rng in rngs]
        self.options = options
        self.spec = atari_spec(options, len(self.actions))
        self.stepping, self.events = self._mask, np.zeros(self.num_envs, np.int32)
        self.counters = np.zeros((3, self.num_envs), np.int32)
        self._frames = np.zeros((self.num_envs, *self.spec.row_shape), np.uint8)
        self._rng = np.random.default_rng(0)
        self._starts = start_states(game, options) if reserve and not why_no_reserve(game, options) else None
        self._options = self._make_options()
        self._plan = FramePlan(self.rules.height, options.frame_shape, options.color)
        self._palette = np.ascontiguousarray(self.palette().T).reshape(-1) if options.color else self.grey_palette()
        self._memories = np.zeros((self.num_envs, self._plan.memory_size), np.uint8)
        self._last_frames = np.zeros_like(self._frames)
        self._made_last = self._last_frames
        if self._plan.enlarges:
            self._made_last = np.zeros((self.num_envs, *self._plan.made_shape), np.uint8)
        # Buffers that single environments write before the values are copied
        self._single_rewards, self._single_ages = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.int64)

    @property
    def simulators(self) -> "list[NativeSimulator]":
        """The environments one by one."""
        return [NativeSimulator(self, env) for env in range(self.num_envs)]  # a kept list would keep the batch alive

    def bind_step(self, frames: Array, rewards: Array, ages: Array) -> Callable[[], int]:
        """Returns a function that plays a step in each environment of `stepping`, with the actions of `set_actions`.

        It writes the new frames uint8 [k, ...], rewards float32 [k] and ages int64 [k], each C-contiguous, and returns
        the number of environments with events. Raises UsageError for other arrays."""
        check_array("frames", frames, np.uint8, (self.num_envs, *self.spec.row_shape))
        check_array("rewards", rewards, np.float32, (self.num_envs,))
        check_array("ages", ages, np.int64, (self.num_envs,))
        return self._bind_frames(AGENT_STEP, 0, frames, rewards, ages)

    def set_actions(self, actions: Array) -> None:
        """Sets the actions of the next step, integers [k]."""
        self._numbers[:] = actions

    def outcome(self, env: int, reward: float) -> Outcome:
        """Returns the outcome of the last step in an environment; raises IndexError if its action does not exist."""
        event = int(self.events[env])
        if event & steps.BAD_ACTION:
            raise IndexError(f"there is no action {self._numbers[env]} among {len(self.actions)}")
        if event & steps.LIFE_ENDED and self._plan.enlarges:
            self._plan.finish(self._made_last[env], self._last_frames[env])
        return Outcome(
            reward,
            float(self.arrays.rewards[env]),
            bool(event & steps.TERMINATED),
            bool(event & steps.TRUNCATED),
            bool(event & steps.GAME_OVER),
            self._last_frames[env] if event & steps.LIFE_ENDED else None,
        )

    def reset_one(self, env: int, row: Array) -> None:
        """Starts the next game in one environment."""
        if self._starts is None:
            row[...] = self._start_game(env, RANDOM_NOOPS)
            return
        s = self._states[env]
        self._rng.bit_generator.state = to_numpy_state(s[GENERATOR])
        starts = self._starts[int(self._rng.integers(self.options.noop_max + 1))]
        s[GENERATOR] = to_words(self._rng)
        start = starts[s[words.NUM_STARTS] % len(starts)]
        kept = s[_KEPT]
        s[:] = start.words
        s[_KEPT] = kept
        s[words.NUM_STARTS] += 1
        # As in ale-py, lines that a short frame does not reach still show the game before.
        s[[words.DRAWN_END, words.DRAWN_END + 1]] = 0
        s[[words.PAINTED, words.PAINTED + 1]] = 1
        row[...] = start.frame

    def make_start(self, noops: int) -> Start:
        """Resets the first environment and returns the resulting state."""
        frame = self._start_game(0, noops).copy()
        return Start(self._states[0].copy(), frame)

    def rebuild(self, env: int, seed: np.random.SeedSequence) -> None:
        """Replaces an environment with a new one."""
        rng = np.random.default_rng(seed)
        self._power_on(np.arange(self.num_envs) == env, int(rng.integers(2**31 - 1)))
        self._states[env, GENERATOR] = to_words(rng)

    def _start_game(self, env: int, noops: int) -> Array:
        """Resets one environment; returns its frame."""
        self._choose(env)
        if self._call_single(START_GAME, noops) >= 0:
            raise RunError(f"{self.rules.name} did not get ready within its reset")
        return np.asarray(self._frames[env])

    def _choose(self, env: int) -> None:
        self.stepping[:] = False
        self.stepping[env] = True

    def _call_single(self, order: int, count: int = 0) -> int:
        """Runs one of core.py's orders for an agent's game on the chosen environment (`_choose`)."""
        key = order, count, False
        if key not in self._calls:
            self._calls[key] = self._bind_frames(order, count, self._frames, self._single_rewards, self._single_ages)
        return self._calls[key]()

    def _bind_frames(self, order: int, count: int, frames: Array, rewards: Array, ages: Array) -> Callable[[], int]:
        """Returns a call of one of core.py's orders for an agent's game, which writes frames [k, ...]."""
        plan = self._plan
        made = np.zeros((self.num_envs, *plan.made_shape), np.uint8) if plan.enlarges else frames
        last = self._made_last.reshape(self.num_envs, -1)
        arrays = self._options, self._palette, plan.maker, self._memories, last, rewards, ages
        command = self._bind(order, count, False, made, (*arrays, self.counters, self.events))
        if not plan.enlarges:
            return command

        stepping = self.stepping  # a reference to self, which holds this call, would make a cycle

        def call() -> int:
            result = command()
            for env in np.flatnonzero(stepping):
                plan.finish(made[env], frames[env])
            return result

        return call

    def _make_options(self) -> Array:
        """Returns the rules of a step in the format of steps.py."""
        options, made = self.options, np.zeros(steps.OPTION_WORDS, np.int32)
        made[steps.FRAME_SKIP] = options.frame_skip
        made[steps.NOOP_MAX] = options.noop_max
        made[steps.EPISODIC_LIVES] = options.episodic_lives
        made[steps.CLIP_REWARD] = options.clip_reward
        made[steps.MAX_STEPS] = options.max_episode_steps
        limit = math.ceil(options.repeat_action_probability * 2**53)
        made[steps.STICKY : steps.STICKY + 2] = np.array([limit & 0xFFFFFFFF, limit >> 32], np.uint32).view(np.int32)
        if options.fire_on_start:
            pressed = [ACTIONS.index("noop")]
            pressed += [action for action in map(ACTIONS.index, ("fire", "up")) if action in self.actions]
            made[steps.NUM_PRESSES] = len(pressed)
            made[steps.PRESSES : steps.PRESSES + len(pressed)] = pressed
        made[steps.NUM_ACTIONS] = len(self.actions)
        made[steps.ACTIONS : steps.ACTIONS + len(self.actions)] = self.action_numbers
        return made


def read_state(state: dict[str, Any], rules: GameRules) -> tuple[Array, Array]:
    """Returns a console and its two pictures from a state of NativeSimulator or AtariSimulator.

    Raises UsageError for another game's state, or if AtariSimulator's does not continue exactly here."""
    rom, console, pictures = unpack(state if is_native_state(state) else to_native(state))
    if rom != rules.md5:
        raise UsageError(f"a state of {rules_for(rom).name} does not fit {rules.name}")
    return console, pictures


class NativeSimulator:
    """A Simulator made of one environment of a batch."""

    def __init__(self, batch: NativeBatch, env: int):
        self._batch, self._env = batch, env
        self.spec = batch.spec

    @property
    def lives(self) -> int:
        return int(self._batch.words(self._env)[words.LIVES])

    def reset(self, row: Array) -> None:
        self._batch.reset_one(self._env, row)

    def step(self, action: Any, row: Array) -> Outcome:
        """Plays a step; raises IndexError if there is no such action."""
        batch, env = self._batch, self._env
        batch._choose(env)
        batch._numbers[env] = min(operator.index(action), len(batch.actions))
        batch._call_single(AGENT_STEP)
        outcome = batch.outcome(env, float(batch._single_rewards[env]))
        row[...] = batch._frames[env]
        return outcome

    def render(self) -> Array:
        """Returns the screen in color [210, 160, 3]."""
        return self._batch.screen(self._env)

    def get_state(self) -> Any:
        """Returns everything that decides the environment's future."""
        batch, env = self._batch, self._env
        return pack(batch.rules.md5, batch._states[env], batch._screens[env, : 2 * steps.PICTURE])

    def set_state(self, state: Any) -> None:
        """Continues from a state of this class, or of AtariSimulator.

        Raises UsageError for another game's state, or if AtariSimulator's does not continue exactly here."""
        batch, env = self._batch, self._env
        batch._states[env], batch._screens[env, : 2 * steps.PICTURE] = read_state(state, batch.rules)

    def close(self) -> None:
        pass


def make_native(
    game: str, options: AtariOptions, seed: np.random.SeedSequence, reserve: bool = False
) -> NativeSimulator:
    """Returns a single environment, the counterpart of AtariSimulator(...)."""
    return NativeBatch(game, options, [seed], reserve).simulators[0]
