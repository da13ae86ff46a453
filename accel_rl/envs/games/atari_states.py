"""Converts saved states of Atari games between the two simulators: ale-py's (atari.py) and the native one (native.py).

Each conversion is tested: both emulators play some frames and resets from the converted state, and must agree. States
of ale-py hold no pictures, so lines that a short frame does not reach look as in a new process.
"""

import functools
import zlib
from pathlib import Path
from typing import Any

import ale_py
import numpy as np

from accel_rl.emulator import state as words
from accel_rl.emulator.ale_states import AleState
from accel_rl.emulator.batch import BatchAtari, BatchState
from accel_rl.emulator.machine_code import check_numba
from accel_rl.emulator.pcg64 import GENERATOR_WORDS, to_numpy_state, to_words
from accel_rl.emulator.rules import game_of, rules_for
from accel_rl.envs.spec import Array
from accel_rl.errors import UsageError

State = dict[str, Any]

TRIALS, TRIAL_FRAMES = 3, 20  # a reset before each trial but the first
GENERATOR = slice(words.AGENT_GENERATOR, words.AGENT_GENERATOR + GENERATOR_WORDS)
# The agent's words in a state, and their names in a state of AtariSimulator
_AGENT = {words.PRESSED: "pressed", words.AGENT_LIVES: "lives", words.AGENT_STEPS: "steps", words.NUM_STARTS: "resets"}
_REMEMBERED = [words.SCORE, words.LIVES, words.TERMINAL, *range(words.MEMORY, words.BEFORE)]


def is_native_state(state: State) -> bool:
    return "words" in state


def pack(rom: str, console: Array, pictures: Array) -> State:
    """Returns the native simulator's state of an environment.

    rom: the ROM's MD5. console: int32 [STATE_WORDS]. pictures: uint8, both pictures one after the other."""
    compressed = {"words": zlib.compress(console.tobytes(), 1), "pictures": zlib.compress(pictures.tobytes(), 1)}
    return {"rom": rom, "layout": words.LAYOUT, **compressed}


def unpack(state: State) -> tuple[str, Array, Array]:
    """Returns the arguments of `pack`. Raises UsageError if another version of the emulator packed the state, or if it
    is damaged."""
    if state["layout"] != words.LAYOUT:
        raise UsageError(
            f"a state of the native simulator has layout {state['layout']}, this version reads {words.LAYOUT}: "
            "continue with the version of accel_rl that wrote the checkpoint"
        )
    try:
        console, pictures = zlib.decompress(state["words"]), zlib.decompress(state["pictures"])
    except zlib.error as error:
        raise UsageError(f"a state of the native simulator is damaged ({error})") from None
    return state["rom"], np.frombuffer(console, np.int32), np.frombuffer(pictures, np.uint8)


def to_native(state: State) -> State:
    """Converts a state of AtariSimulator to one of the native simulator.

    Raises UsageError if it does not continue exactly."""
    saved = bytes(state["emulator"].__getstate__())
    game = rules_for(AleState(saved).md5).name
    atari = _new_console(game)
    atari.load_ale_state(0, saved)
    s = atari.words(0)
    for word, name in _AGENT.items():
        s[word] = state[name]
    s[words.LIVES] = state["lives"]
    rng = np.random.default_rng(0)
    rng.bit_generator.state = state["rng"]
    s[GENERATOR] = to_words(rng)
    rom, consoles, pictures, _ = atari.get_state()
    if not _plays_equally(game, saved, atari):
        raise _inexact(game, "ale", "native")
    return pack(rom, consoles[0], pictures[0])


def to_ale(state: State, unseen_frames: int = 0) -> State:
    """Converts a state of the native simulator to one of AtariSimulator.

    unseen_frames: number of frames after the state that are never shown (frame_skip - 2); ale-py needs up to two until
    its screens are whole again. Raises UsageError if it does not continue exactly, or without Numba."""
    try:
        check_numba()
    except UsageError as error:
        raise UsageError(f"the native simulator has written the checkpoint and must convert it, but {error}") from None
    rom, s, pictures = unpack(state)
    game = rules_for(rom).name
    atari = _new_console(game)
    atari.set_state(BatchState.of(rom, s[np.newaxis], pictures[np.newaxis]))
    saved = atari.save_ale_state(0, _any_ale_state(game))
    if not (_remembers(game, saved, s) and _plays_equally(game, saved, atari, unseen_frames)):
        raise _inexact(game, "native", "ale")
    converted: State = {name: int(s[word]) for word, name in _AGENT.items()}
    return converted | {"emulator": _ale_state(saved), "rng": to_numpy_state(s[GENERATOR])}


def _inexact(game: str, written_by: str, wanted: str) -> UsageError:
    return UsageError(
        f"{game}: a state of the {written_by} simulator does not continue exactly on {wanted}; "
        f"use the simulator that has written the checkpoint (--simulator {written_by})"
    )


def _remembers(game: str, saved: bytes, s: Array) -> bool:
    """Returns whether ale-py's state agrees with our words on everything except the hardware."""
    atari = _new_console(game)
    atari.load_ale_state(0, saved)
    is_equal = (atari.words(0)[_REMEMBERED] == s[_REMEMBERED]).all()
    return bool(is_equal and not s[words.FRAME_GOES_ON] and not s[words.INSTRUCTIONS_LEFT])


def _plays_equally(game: str, saved: bytes, atari: BatchAtari, unseen_frames: int = 0) -> bool:
    """Returns whether a new emulator of ale-py plays like atari; both take the same random actions."""
    if not game_of(game).saved:
        return False
    ale = _open_ale(game)
    ale.restoreState(_ale_state(saved))
    rng = np.random.default_rng(0)
    for trial in range(TRIALS):
        if trial:
            ale.reset_game()
            atari.reset()
        for frame in range(TRIAL_FRAMES):
            action = int(rng.integers(len(atari.actions)))
            reward = ale.act(ale_py.Action(atari.actions[action]))
            arrays = atari.step([action])
            ours = int(arrays.rewards[0]), bool(arrays.terminated[0]), int(arrays.lives[0])
            if (reward, ale.game_over(with_truncation=False), ale.lives()) != ours:
                return False
            is_seen = trial or frame >= unseen_frames
            if (ale.getRAM() != atari.ram[0]).any() or (is_seen and (ale.getScreen() != arrays.frames[0]).any()):
                return False
    return True


def _new_console(game: str) -> BatchAtari:
    """Returns a console that has just been switched on."""
    atari, state = _consoles(game)
    atari.set_state(state)
    return atari


@functools.cache
def _consoles(game: str) -> tuple[BatchAtari, Any]:
    atari = BatchAtari(game, 1)
    return atari, atari.get_state()


@functools.cache
def _any_ale_state(game: str) -> bytes:
    return bytes(_open_ale(game).cloneState(include_rng=True).__getstate__())


def _open_ale(game: str) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(Path(str(ale_py.roms.get_rom_path(game))))
    return ale


def _ale_state(saved: bytes) -> ale_py.ALEState:
    state = ale_py.ALEState.__new__(ale_py.ALEState)
    state.__setstate__(saved)  # type: ignore[arg-type]
    return state
