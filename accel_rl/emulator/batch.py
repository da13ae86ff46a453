"""Steps many copies of one Atari 2600 game."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from accel_rl.emulator import state as words
from accel_rl.emulator.ale_states import AleState, copy_from_ale, copy_game_from_ale, copy_game_to_ale, copy_to_ale
from accel_rl.emulator.cartridges import KINDS
from accel_rl.emulator.consoles import BatchArrays, Bools, Bytes, Consoles, Ints, check_integers
from accel_rl.emulator.core import EVALUATE_RULES, LOOK, STEP, STEP_INSTRUCTIONS
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.rules import rules_for
from accel_rl.emulator.state import INSTRUCTIONS_LEFT, LAYOUT, TRUNCATED
from accel_rl.emulator.steps import PICTURE
from accel_rl.errors import UsageError


class BatchState(NamedTuple):
    """A copy of everything that decides how a batch continues.

    md5: the ROM's. words: int32 [num_envs, STATE_WORDS]. pictures: uint8 [num_envs, 2 * PICTURE]. checksum: of words
    and pictures, since damaged words would crash the interpreter."""

    md5: str
    words: Ints
    pictures: Bytes
    checksum: int

    @classmethod
    def of(cls, md5: str, words: Ints, pictures: Bytes) -> "BatchState":
        """Returns a state with its checksum."""
        return cls(md5, words, pictures, zlib.crc32(pictures.tobytes(), zlib.crc32(words.tobytes(), LAYOUT)))


class BatchAtari(Consoles):
    """Steps num_envs copies of one Atari 2600 game, each frame equal to ale-py's.

    game: a name as in ale-py (pong, ALE/Pong-v5), or the path of a ROM, which is recognized by its MD5. seed: the seed
    of sticky actions, like ale-py's `random_seed`: one number, or one for each environment. Negative numbers are
    allowed; -1 gives other sticky actions each time. mode, difficulty: ale-py's numbers; None: the game's first mode,
    and 0. repeat_action_probability: of sticky actions. max_episode_frames: truncates a game after this many frames,
    which include its reset, as in ale-py; 0: never. frame_skip: frames per step, all with the step's action.
    full_action_space: actions are ale-py's 18, in its order, instead of indices into `actions`. draw: each step writes
    its last frame to `arrays.frames`. arrays: the arrays to write; None: new ones.

    A batch can be pickled, and copied by copy.deepcopy; the copy has separate arrays.

    Batches share nothing, and a step releases the GIL, so several threads may each step a batch. Raises UsageError for
    an unknown game, ROM, mode, difficulty or option, or if Numba is missing or too old."""

    def __init__(
        self,
        game: str | Path,
        num_envs: int,
        *,
        seed: int | Sequence[int] = 0,
        mode: int | None = None,
        difficulty: int | None = None,
        repeat_action_probability: float = 0.0,
        max_episode_frames: int = 0,
        frame_skip: int = 1,
        full_action_space: bool = False,
        draw: bool = True,
        arrays: BatchArrays | None = None,
    ):
        check_integers(1, frame_skip=frame_skip)
        super().__init__(
            game,
            num_envs,
            seed=seed,
            repeat_action_probability=repeat_action_probability,
            max_episode_frames=max_episode_frames,
            full_action_space=full_action_space,
            draw=draw,
            arrays=arrays,
        )
        self.frame_skip = frame_skip
        self._choose_mode(mode, difficulty)

    def set_mode(self, mode: int | None = None, difficulty: int | None = None) -> None:
        """Sets the mode and difficulty for later resets; None: the game's first mode and difficulty 0, as in ale-py.

        Raises UsageError for a number that the game does not have."""
        self._choose_mode(mode, difficulty)

    def reset(self, mask: Bools | None = None) -> BatchArrays:
        """Starts a new game in each environment, or in those that the mask names. As in ale-py, the RAM keeps the last
        game's contents. Returns the arrays, with the frames drawn if the batch draws.

        mask: bool [num_envs]. Raises UsageError for anything else."""
        if mask is not None:
            mask = np.asarray(mask)
            if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
                raise UsageError(f"mask must be bool [{self.num_envs}], not {mask.dtype} {list(mask.shape)}")
        self._reset(mask)
        return self.arrays

    def step(self, actions: npt.ArrayLike, draw: bool | None = None) -> BatchArrays:
        """Plays one step in each environment. If its game has ended, nothing changes and the reward is 0.

        actions: integers [num_envs], indices into `self.actions`. draw: write the frames (None: if the batch draws).
        Returns the arrays. Raises UsageError for an action that does not exist."""
        draws = self.draw if draw is None else draw
        self._command(STEP, actions=self._check(actions), count=self.frame_skip, draw=draws)
        return self.arrays

    def step_instructions(self, actions: npt.ArrayLike, count: int) -> Bools:
        """Runs at most count instructions in each environment, and stops at the end of a frame. Returns which
        environments have finished their frame: bool [num_envs].

        actions: as for `step`; a new frame takes its action at its start. The frame is the same as that of a step."""
        self._command(STEP_INSTRUCTIONS, actions=self._check(actions), count=count)
        return np.equal(self._states[:, INSTRUCTIONS_LEFT], 0)

    def get_state(self) -> BatchState:
        """Returns a copy of everything that decides how the batch continues."""
        return BatchState.of(self.rules.md5, self._states.copy(), self._screens[:, : 2 * PICTURE].copy())

    def set_state(self, state: BatchState) -> None:
        """Restores a state that `get_state` returned.

        Raises UsageError for a state of another game or number of environments, and for one that was modified."""
        if state.md5 != self.rules.md5:
            raise UsageError(f"a state of {rules_for(state.md5).name} does not fit this batch of {self.rules.name}")
        if len(state.words) != self.num_envs:
            raise UsageError(f"a state of {len(state.words)} environments does not fit this batch of {self.num_envs}")
        if BatchState.of(*state[:3]).checksum != state.checksum:
            raise UsageError("this state is damaged, or of another version of the emulator: its checksum is wrong")
        self._states[:], self._screens[:, : 2 * PICTURE] = state.words, state.pictures
        self._command(LOOK)

    def load_ale_state(self, env: int, state: bytes, screen: Bytes | None = None) -> None:
        """Continues an environment from one of ale-py's saved states, `ALEInterface.cloneState().__getstate__()`.

        ale-py saves no picture: lines that a short frame does not reach show those of `screen` [height, 160], or of the
        frames before. The generator of sticky actions does not change if the state was saved without `include_rng`, nor
        do variables of the rules that ale-py does not save. ale-py's states of Q*bert, Tetris and 3-D Tic-Tac-Toe lack
        a half-drawn frame. Raises UsageError for anything but a state of a game on this kind of cartridge."""
        mask = self._only(env)
        s, ale_state = self._states[env], self._read_ale_state(state)
        self._paint_both(env)
        copy_from_ale(s, ale_state)
        copy_game_from_ale(s, ale_state, self.rules.saved)
        s[[TRUNCATED, words.FRAME_GOES_ON, INSTRUCTIONS_LEFT, words.DRAWN_END, words.DRAWN_END + 1]] = 0
        self._command(EVALUATE_RULES, mask)
        lives = int(s[words.LIVES])
        copy_game_from_ale(s, ale_state, self.rules.saved)  # some values cannot be computed a second time
        if s[words.TERMINAL]:
            s[words.LIVES] = lives  # ale-py saves the remaining lives, but shows 0
        s[TRUNCATED] = 0 < s[words.MAX_EPISODE_FRAMES] <= s[words.EPISODE_FRAME]
        if screen is not None:
            self._screens[env].reshape(3, PICTURE_LINES, LINE_PIXELS)[:2, : len(screen)] = screen

    def save_ale_state(self, env: int, state: bytes) -> bytes:
        """Returns one of ale-py's saved states with an environment's hardware, for `ALEState.__setstate__`.

        state: a state of the same game that ale-py has saved. Not saved are pictures, the action that a sticky action
        would repeat, and the rules' variables that ale-py does not save. Raises UsageError like `load_ale_state`."""
        self._only(env)
        ale_state = self._read_ale_state(state)
        copy_game_to_ale(self._states[env], ale_state, self.rules.saved)
        copy_to_ale(self._states[env], ale_state)
        return bytes(ale_state)

    def _paint_both(self, env: int) -> None:
        """Paints the last frame and the one before it into their pictures, as in ale-py."""
        mask, s = self._only(env), self._states[env]
        self._command(LOOK, mask, draw=True)
        last = s.copy()
        s[words.FRAME_BUFFER] ^= 1
        s[words.SLOT] = (s[words.SLOT] + 2) % 3
        self._command(LOOK, mask, draw=True)
        s[:] = last
        s[[words.PAINTED, words.PAINTED + 1]] = 1

    def _read_ale_state(self, state: bytes) -> AleState:
        try:
            ale_state = AleState(bytes(state))
        except (ValueError, KeyError, struct.error):
            raise UsageError("this is no saved state of ale-py's") from None
        kind = KINDS[self._states[0, words.CARTRIDGE]]
        if ale_state.cartridge != kind:
            raise UsageError(f"a state of a {ale_state.cartridge} cartridge does not fit {self.rules.name}'s ({kind})")
        return ale_state

    def _check(self, actions: npt.ArrayLike) -> Ints:
        """Returns ale-py's numbers for these actions."""
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or chosen.dtype.kind not in "iu":
            raise UsageError(f"actions must be {self.num_envs} integers, not {chosen.dtype} {list(chosen.shape)}")
        wrong = (chosen < 0) | (chosen >= len(self.actions))
        if wrong.any():
            env = int(np.argmax(wrong))
            allowed = f"{self.rules.name} has actions 0 to {len(self.actions) - 1}"
            raise UsageError(f"environment {env}: there is no action {chosen[env]}; {allowed}")
        return np.asarray(self.action_numbers[chosen])
