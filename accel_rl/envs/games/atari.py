"""Simulates Atari games on ale-py's emulator, with the frame processing of Stooke & Abbeel 2018 (5.1) or others.

A step is one decision of the agent: `frame_skip` emulator frames with the same action. The newest observation frame is
the pixel-wise maximum of the last two screens, downsized.
"""

import functools
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np

from accel_rl.config.atari_options import AtariOptions
from accel_rl.config.fields import build
from accel_rl.envs.games.frames import FrameMaker
from accel_rl.envs.spec import Array, EnvSpec, Outcome
from accel_rl.errors import unknown

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

NUM_STARTS = 93  # prepared starts of a game, three for each of 0 to 30 no-ops: 1.6 MB at 104x80
PRESETS = {
    "stooke": AtariOptions(),
    "dqn84": AtariOptions(frame_shape=(84, 84)),  # Mnih et al. 2015
    "v5": AtariOptions(  # Machado et al. 2018: sticky actions, whole games
        frame_shape=(84, 84), noop_max=0, repeat_action_probability=0.25, episodic_lives=False, fire_on_start=False
    ),
}


def make_options(preset: str, options: dict[str, Any]) -> AtariOptions:
    """Returns the named preset with some options changed.

    Raises UsageError for an unknown preset or option, or a value out of range."""
    if preset not in PRESETS:
        raise unknown("env preset", preset, PRESETS)
    names = [option.name for option in fields(AtariOptions)]
    for name in options:
        if name not in names:
            raise unknown("Atari option", name, names)
    made: AtariOptions = build(AtariOptions, {**asdict(PRESETS[preset]), **options})
    return made


@functools.cache
def games() -> dict[str, str]:
    """Returns every game's name and its id in gymnasium: {"pong": "ALE/Pong-v5", ...}."""
    return {
        env.kwargs["game"]: env_id
        for env_id, env in sorted(gymnasium.registry.items())
        if env_id.startswith("ALE/") and env_id.endswith("-v5") and env.kwargs.get("obs_type", "rgb") == "rgb"
    }


def game_name(env_id: str) -> str | None:
    """Returns the game that an id such as "pong" or "ALE/Pong-v5" names; None if it is not an Atari game."""
    if env_id in games():
        return env_id
    return next((name for name, ale_id in games().items() if ale_id == env_id), None)


# Games whose saved states cannot replace a reset: tests/envs/test_start_states.py compares trajectories of all games.
# Resets of these depend on the previous game, so no fixed set of states has their distribution:
RESET_REMEMBERS = frozenset(
    [
        "crossbow",
        "hangman",
        "haunted_house",
        "ice_hockey",
        "kung_fu_master",
        "pooyan",
        "sir_lancelot",
        "space_war",
        "surround",
        "time_pilot",
        "yars_revenge",
    ]
)
# The emulator's saved state lacks the half-drawn screen that these games leave after each frame. It is never restored:
# https://github.com/Farama-Foundation/Arcade-Learning-Environment/pull/739
NO_STATES = frozenset({"qbert", "tetris", "tic_tac_toe_3d"})


def why_no_reserve(game: str, options: AtariOptions) -> str | None:
    """Returns why prepared start states cannot replace this game's resets, or None if they can."""
    if game in NO_STATES:
        return "its saved states are incomplete"
    if game in RESET_REMEMBERS:
        return "its resets depend on what was played before"
    if options.frame_skip < 3:
        return "after a saved state, the emulator needs up to two frames to draw whole screens again"
    if options.repeat_action_probability and options.fire_on_start:
        return "sticky actions may change the button presses that start it (--no-fire-on-start omits these)"
    return None


def atari_spec(options: AtariOptions, num_actions: int) -> EnvSpec:
    """Returns a game's spec: its actions, and stacks of gray frames or single frames in color."""
    shape = (3, *options.frame_shape) if options.color else options.frame_shape
    frames = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    return EnvSpec(frames, gymnasium.spaces.Discrete(num_actions), 0 if options.color else options.frame_stack)


class Start(NamedTuple):
    """A state right after a reset, with its first frame."""

    emulator: Any
    frame: Array
    pressed: ale_py.Action
    lives: int


@functools.cache
def start_states(game: str, options: AtariOptions) -> list[list[Start]]:
    """Returns prepared starts with 0, 1, ... noop_max no-ops, all from real resets, the same for every seed.

    There are several of each, since a reset sets the emulator's timer at random, and some games use it."""
    simulator = AtariSimulator(game, options, np.random.SeedSequence(0))
    copies = -(-NUM_STARTS // (options.noop_max + 1))
    return [[simulator.make_start(noops) for _ in range(copies)] for noops in range(options.noop_max + 1)]


class AtariSimulator:
    """A simulator of one Atari game.

    seed: decides the number of no-ops at the start of each game, and the sticky actions. These are drawn here, since
    the emulator's saved states do not hold the action to repeat. reserve: a reset restores a prepared state, which
    takes 50 microseconds instead of 5 milliseconds (see start_states and why_no_reserve)."""

    def __init__(self, game: str, options: AtariOptions, seed: np.random.SeedSequence, reserve: bool = False):
        self.options = options
        self._game = game
        self._rng = np.random.default_rng(seed)
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", int(self._rng.integers(2**31 - 1)))
        self.ale.setFloat("repeat_action_probability", 0.0)
        rom = ale_py.roms.get_rom_path(game)
        assert rom is not None, game
        self.ale.loadROM(rom)  # reads both settings, so it comes after them
        self._actions = self.ale.getMinimalActionSet()
        self._start_presses: list[ale_py.Action] = []
        if options.fire_on_start:
            self._start_presses.append(ale_py.Action.NOOP)
            self._start_presses += [a for a in (ale_py.Action.FIRE, ale_py.Action.UP) if a in self._actions]
        self.spec = atari_spec(options, len(self._actions))
        self._frames = FrameMaker(self.ale.getScreenDims(), options.frame_shape, options.color)
        self._last_frame = np.zeros(self.spec.row_shape, np.uint8)  # the frame before the last lost life
        self._skipped = range(options.frame_skip - 1)
        self._sticky = options.repeat_action_probability
        self._pressed = ale_py.Action.NOOP  # the last frame's action
        self._lives = 0
        self._steps = 0
        self._resets = 0
        self._starts = start_states(game, options) if reserve and not why_no_reserve(game, options) else None

    @property
    def lives(self) -> int:
        return int(self.ale.lives())

    def reset(self, row: Array) -> None:
        noops = int(self._rng.integers(self.options.noop_max + 1))
        if self._starts:
            start = self._starts[noops][self._resets % len(self._starts[noops])]
            self.ale.restoreState(start.emulator)
            row[...] = start.frame
            self._pressed, self._lives = start.pressed, start.lives
        else:
            self._reset_game(noops, row)
        self._resets += 1
        self._steps = 0

    def make_start(self, noops: int) -> Start:
        """Resets the game and returns the resulting state."""
        frame = np.zeros(self.spec.row_shape, np.uint8)
        self._reset_game(noops, frame)
        return Start(self.ale.cloneState(include_rng=False), frame, self._pressed, self._lives)

    def _reset_game(self, noops: int, row: Array) -> None:
        self.ale.reset_game()
        self._pressed = ale_py.Action.NOOP
        self._press_start()
        for _ in range(noops):
            self._act(ale_py.Action.NOOP)
        if self.ale.game_over():  # a game that no-ops can lose
            self.ale.reset_game()
            self._press_start()
        self._lives = self.ale.lives()
        self._frames.write(self.ale, row)

    def step(self, action: Any, row: Array) -> Outcome:
        if action < 0:
            raise IndexError(f"there is no action {action} among {len(self._actions)}")
        ale, press = self.ale, self._actions[action]
        score = 0
        for _ in self._skipped:
            score += self._act(press)
        if self._skipped:
            self._frames.keep(ale)
        score += self._act(press)
        self._frames.write(ale, row, with_kept=bool(self._skipped))

        self._steps += 1
        reward = float((score > 0) - (score < 0)) if self.options.clip_reward else float(score)
        lives = ale.lives()
        life_lost = 0 < lives < self._lives
        self._lives = lives  # even if it grew: losing a bonus life counts, too
        over = bool(ale.game_over())
        cut = self._steps >= self.options.max_episode_steps and not over
        terminated = over or (life_lost and self.options.episodic_lives)
        last_frame = None
        if life_lost and not (over or cut):
            score += self._press_start()
            self._lives = ale.lives()
            if terminated:
                last_frame = self._last_frame
                np.copyto(last_frame, row)
                self._frames.write(ale, row)  # the maximum with the previous screen would mix two episodes
            over = bool(ale.game_over())  # the button presses can lose a game, too
        return Outcome(reward, float(score), terminated or over, cut and not terminated, over or cut, last_frame)

    def _act(self, press: ale_py.Action) -> int:
        """Emulates one frame, perhaps with the last frame's action (sticky actions); returns its reward."""
        if not self._sticky or self._rng.random() >= self._sticky:
            self._pressed = press
        return self.ale.act(self._pressed)

    def _press_start(self) -> int:
        """Presses each button that starts a game or a life for one frame; returns the reward of these frames."""
        return sum(self._act(press) for press in self._start_presses)

    def render(self) -> Array:
        """Returns the screen in color [210, 160, 3]."""
        return self.ale.getScreenRGB()

    def get_state(self) -> Any:
        if self._game in NO_STATES:
            return None
        return {
            "emulator": self.ale.cloneState(include_rng=True),
            "rng": self._rng.bit_generator.state,
            "pressed": self._pressed.value,
            "lives": self._lives,
            "steps": self._steps,
            "resets": self._resets,
        }

    def set_state(self, state: Any) -> None:
        from accel_rl.envs.games.atari_states import (  # not at the top: it imports the native emulator
            is_native_state,
            to_ale,
        )

        if is_native_state(state):
            state = to_ale(state, unseen_frames=self.options.frame_skip - 2)
        # The emulator's screen stays stale until its next frame, but each step draws new screens.
        self.ale.restoreState(state["emulator"])
        self._rng.bit_generator.state = state["rng"]
        self._pressed = ale_py.Action(state["pressed"])
        self._lives, self._steps, self._resets = state["lives"], state["steps"], state["resets"]

    def close(self) -> None:
        pass
