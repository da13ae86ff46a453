"""Reads, writes and converts ale-py's saved states, `ALEInterface.cloneState().__getstate__()`.

They are sequences of 32-bit words and of strings that begin with their length. Each part of the console begins with its
name. This makes ale-py an oracle for every register: change a word, restore the state, run a frame, compare. The
variables of the game's rules follow the cartridge. Random generators are text: the system's is among its words, the
actions' follows the rules if the state was saved with it.
"""

import re
import struct

import numpy as np

from accel_rl.emulator import dpc
from accel_rl.emulator import state as words
from accel_rl.emulator.mt19937 import GENERATOR_WORDS
from accel_rl.emulator.objects import MIRRORED
from accel_rl.emulator.registers import ALL_OBJECTS
from accel_rl.emulator.state import (
    ACTION_GENERATOR,
    CYCLES,
    LEFT_OVER,
    RAM,
    REGISTER,
    SLICE,
    SYSTEM_GENERATOR,
    VSYNC_CLOCK,
)

_TRUE, _FALSE = 0xFAB1FAB2, 0xBAD1BAD2

# Words by name. A name that ends with "?" is a flag. Names without dots are words that the emulator does not use.
_HEAD = "LEFT_PADDLE RIGHT_PADDLE FRAME EPISODE_FRAME MODE DIFFICULTY"
_SYSTEM = "CYCLES"
_CPU = "A X Y SP . PC N? V? B? D? I? NOT_Z? C?"
_RIOT = "TIMER TIMER_SHIFT TIMER_SET_CYCLE TIMER_INTERRUPT_CYCLE TIMER_READ_AFTER_INTERRUPT? DDRA"
_TIA = """
    FRAME_CLOCK START_DISPLAY_CLOCK STOP_DISPLAY_CLOCK UPDATE_CLOCK CLOCKS_TO_LINE_END LAST_FRAME_LINES LINE
    VSYNC_CLOCK ENABLED_OBJECTS VSYNC VBLANK NUSIZ0 NUSIZ1 COLUP0 COLUP1 COLUPF COLUBK CTRLPF PRIORITY_AND_SCORE
    REFP0? REFP1? PF GRP0 GRP1 DGRP0 DGRP1 ENAM0? ENAM1? ENABL? DENABL? HMP0 HMP1 HMM0 HMM1 HMBL VDELP0? VDELP1?
    VDELBL? RESMP0? RESMP1?
    COLLISIONS POSP0 POSP1 POSM0 POSM1 POSBL CURRENT_GRP0 CURRENT_GRP1 LAST_HMOVE_CLOCK HMOVE_BLANK?
    M0_COSMIC_ARK? M0_COSMIC_ARK_COUNTER DUMP_ENABLED? DUMP_DISABLED_CYCLE"""
_CARTRIDGES = {
    "2K": "",
    "4K": "",
    "F8": "BANK",
    "F8SC": "BANK . *CARTRIDGE_RAM",
    "F6": "BANK",
    "F6SC": "BANK . *CARTRIDGE_RAM",
    "E0": ". SLICE0 SLICE1 SLICE2 SLICE3",
    "FE": "",
    "DPC": "BANK . {TOP} . {BOTTOM} . {COUNTER} . {FLAG} . "
    "IS_MUSIC5? IS_MUSIC6? IS_MUSIC7? RANDOM MUSIC_CYCLE MUSIC_FRACTION",
}


# Words with the same meaning in both: ale-py's name, then the emulator's.
_SAME = {name: name for name in _RIOT.replace("?", "").split() + ["MUSIC_CYCLE", "HMOVE_BLANK", "CYCLES", "BANK"]}
_SAME |= {name: name for name in ("A", "X", "Y", "SP", "PC", "N", "V", "B", "D", "I", "C")}
_SAME |= {"DGRP0": "OLD_GRP0", "DGRP1": "OLD_GRP1", "M0_COSMIC_ARK": "COSMIC_ARK", "DUMP_ENABLED": "PADDLES_DUMPED"}
_SAME |= {"M0_COSMIC_ARK_COUNTER": "COSMIC_ARK_STEP", "DUMP_DISABLED_CYCLE": "DUMP_END"}
_POSITIONS = ("POSP0", "POSP1", "POSM0", "POSM1", "POSBL")
# The TIA's registers: address, and how far ale-py shifts the value to the right (it keeps flags as 0 or 1).
_REGISTERS = {"VSYNC": (0x00, 0), "VBLANK": (0x01, 0), "NUSIZ0": (0x04, 0), "NUSIZ1": (0x05, 0), "CTRLPF": (0x0A, 0)}
_REGISTERS |= {"COLUP0": (0x06, 0), "COLUP1": (0x07, 0), "COLUPF": (0x08, 0), "COLUBK": (0x09, 0)}
_REGISTERS |= {"REFP0": (0x0B, 3), "REFP1": (0x0C, 3), "GRP0": (0x1B, 0), "GRP1": (0x1C, 0)}
_REGISTERS |= {"ENAM0": (0x1D, 1), "ENAM1": (0x1E, 1), "ENABL": (0x1F, 1), "RESMP0": (0x28, 1), "RESMP1": (0x29, 1)}
_REGISTERS |= {name: (0x20 + i, 4) for i, name in enumerate(("HMP0", "HMP1", "HMM0", "HMM1", "HMBL"))}
_REGISTERS |= {name: (0x25 + i, 0) for i, name in enumerate(("VDELP0", "VDELP1", "VDELBL"))}
_DPC_WORDS = ("TOP", "BOTTOM", "COUNTER", "FLAG", "IS_MUSIC")  # eight of each
_DPC = {f"{name}{i}": getattr(dpc, name) + i for name in _DPC_WORDS for i in range(8)}
_DPC["RANDOM"] = dpc.RANDOM
_BESIDES_HARDWARE = ("LEFT_PADDLE", "RIGHT_PADDLE", "FRAME", "EPISODE_FRAME")
_FRACTION_UNIT = 10**8  # parts of a step, which ale-py's MUSIC_FRACTION counts
_GENERATOR = re.compile(rb"\d+( \d+){%d}" % (GENERATOR_WORDS - 1))
_LENGTH = 24  # offset of the length of the remaining data, without the paddles at the end
_LATCHES = (1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 15, 14)  # bits of COLLISIONS, in ale-py's order
_PF0, _PF1, _PF2 = 0x0D, 0x0E, 0x0F
_NEVER = 2**31 - 1


class AleState:
    """A saved state whose words have names: `state["A"]`, `state["POSP0"] = 80`."""

    def __init__(self, data: bytes):
        self._data = bytearray(data)
        self._offsets: dict[str, int] = {}
        self._flags: set[str] = set()
        self._find_parts()

    def _find_parts(self) -> None:
        """Finds the position of each word in the data."""
        self._add(_HEAD, 0)
        self.md5 = self._data[_LENGTH + 8 : _LENGTH + 40].decode("ascii")
        """MD5 of the ROM."""
        self._system_text = self._add(_SYSTEM, self._find("System", 0)) + 4
        at = self._add(_CPU, self._find("M6502Low", self._system_text))
        self._ram = self._find("M6532", at) + 4
        at = self._add(_RIOT, self._ram + 4 * 128)
        at = self._add(_TIA, self._find("TIA", at))
        at = self._find("TIASound", at)
        start = self._data.index(b"Cartridge", at)
        (length,) = struct.unpack_from("<I", self._data, start - 4)
        self.cartridge = self._data[start + len("Cartridge") : start + length].decode()
        self._cartridge_words = start + length
        names = _CARTRIDGES[self.cartridge]
        self._cartridge_ram = self._cartridge_words + 8 if "*" in names else None
        for part in ("TOP", "BOTTOM", "COUNTER", "FLAG"):
            names = names.replace(f"{{{part}}}", " ".join(f"{part}{i}" for i in range(8)))
        at = self._add(names.partition("*")[0], self._cartridge_words)
        self._saved = at if self._cartridge_ram is None else at + 4 * 128
        (length,) = struct.unpack_from("<I", self._data, self._system_text - 4)
        self._texts = {SYSTEM_GENERATOR: slice(self._system_text, self._system_text + length)}
        (length,) = struct.unpack_from("<I", self._data, _LENGTH)
        self._saved_end = _LENGTH + length  # the next word says whether a generator follows
        text = _GENERATOR.search(self._data, self._saved, _LENGTH + 4 + length)
        if text:
            self._texts[ACTION_GENERATOR] = slice(*text.span())
            self._saved_end = text.start() - 8

    def _find(self, name: str, start: int) -> int:
        key = struct.pack("<I", len(name)) + name.encode()
        return self._data.index(key, start) + len(key)

    def _add(self, names: str, at: int) -> int:
        for name in names.split():
            self._offsets[name.rstrip("?")] = at
            if name.endswith("?"):
                self._flags.add(name.rstrip("?"))
            at += 4
        return at

    def __getitem__(self, name: str) -> int:
        word = struct.unpack_from("<i", self._data, self._offsets[name])[0]
        return int(word == _TRUE - 2**32) if name in self._flags else word

    def __setitem__(self, name: str, value: int) -> None:
        word = (_TRUE if value else _FALSE) if name in self._flags else int(value) & 0xFFFFFFFF
        struct.pack_into("<I", self._data, self._offsets[name], word)

    def __contains__(self, name: str) -> bool:
        return name in self._offsets

    @property
    def saved(self) -> list[int]:
        """Returns the saved variables of the game's rules; flags are 1 or 0."""
        values = struct.unpack(f"<{(self._saved_end - self._saved) // 4}i", self._data[self._saved : self._saved_end])
        return [{_TRUE - 2**32: 1, _FALSE - 2**32: 0}.get(value, value) for value in values]

    def save(self, index: int, value: int) -> None:
        """Changes one of the saved variables of the game's rules."""
        at = self._saved + 4 * index
        is_flag = struct.unpack_from("<I", self._data, at)[0] in (_TRUE, _FALSE)
        word = (_TRUE if value else _FALSE) if is_flag else int(value) & 0xFFFFFFFF
        struct.pack_into("<I", self._data, at, word)

    def generator(self, words: int) -> np.ndarray | None:
        """Returns the generator that a console keeps in these words; None if the state was saved without it."""
        if words not in self._texts:
            return None
        return np.array([int(number) for number in self._data[self._texts[words]].split()], np.uint32).view(np.int32)

    def set_generator(self, words: int, generator: np.ndarray) -> None:
        """Changes a generator that the state has."""
        at = self._texts[words]
        text = " ".join(map(str, generator.view(np.uint32))).encode()
        self._data[at.start - 4 : at.stop] = struct.pack("<I", len(text)) + text
        (length,) = struct.unpack_from("<I", self._data, _LENGTH)
        struct.pack_into("<I", self._data, _LENGTH, length + len(text) - (at.stop - at.start))
        self._find_parts()

    def is_flag(self, name: str) -> bool:
        """Returns whether a word is a flag."""
        return name in self._flags

    def names(self) -> list[str]:
        """Returns the names of all words."""
        return [name for name in self._offsets if name != "."]

    @property
    def ram(self) -> np.ndarray:
        """Returns the RIOT's RAM; writing to it changes the state."""
        return np.frombuffer(self._data, "<u4", 128, self._ram)

    @property
    def cartridge_ram(self) -> np.ndarray | None:
        """Returns the cartridge's RAM (F8SC, F6SC), or None; writing to it changes the state."""
        return None if self._cartridge_ram is None else np.frombuffer(self._data, "<u4", 128, self._cartridge_ram)

    def __bytes__(self) -> bytes:
        return bytes(self._data)


def copy_from_ale(s: np.ndarray, state: AleState) -> None:
    """Sets the hardware's words to those of a state that ale-py saved between two frames.

    The cartridge must be in the console already. The states of a few games are incomplete, because ale-py does not save
    that a player's first copy is hidden for the rest of a line."""
    for theirs, ours in _SAME.items():
        if theirs in state:
            s[getattr(words, ours)] = state[theirs]
    s[words.Z] = 1 - state["NOT_Z"]
    s[RAM : RAM + 128] = state.ram
    if state.cartridge_ram is not None:
        s[words.CARTRIDGE_RAM : words.CARTRIDGE_RAM + 128] = state.cartridge_ram
    if "BANK" in state:
        s[SLICE : SLICE + 4] = 0x1000 * state["BANK"] + 0x400 * np.arange(4)
    for slot in range(4):
        if state.cartridge == "E0":
            s[SLICE + slot] = 0x400 * state[f"SLICE{slot}"]

    for name, word in _DPC.items():
        if name in state:
            s[word] = state[name]
    if "MUSIC_FRACTION" in state:
        s[words.MUSIC_FRACTION] = round(state["MUSIC_FRACTION"] * dpc.MUSIC_PERIOD / _FRACTION_UNIT)

    s[LEFT_OVER] = -state["FRAME_CLOCK"]
    s[VSYNC_CLOCK] = state["VSYNC_CLOCK"] + (s[LEFT_OVER] if state["VSYNC_CLOCK"] != _NEVER else 0)
    s[words.HMOVE_CLOCK] = state["LAST_HMOVE_CLOCK"] + s[LEFT_OVER]
    for name, (register, shift) in _REGISTERS.items():
        s[REGISTER + register] = (state[name] & 0xFF) << shift
    s[REGISTER + _PF0] = (state["PF"] & 0xF) << 4
    s[REGISTER + _PF1] = state["PF"] >> 4 & 0xFF
    s[REGISTER + _PF2] = state["PF"] >> 12
    s[words.REFLECT] = state["CTRLPF"] & 1
    s[words.COSMIC_ARK_SHAPE] = (0, 1, 2, 0)[state["M0_COSMIC_ARK_COUNTER"]] if state["M0_COSMIC_ARK"] else 0
    s[words.OLD_ENABL] = state["DENABL"] << 1
    s[words.POSITION : words.POSITION + 5] = [state[name] for name in _POSITIONS]
    s[words.COLLISIONS] = sum((state["COLLISIONS"] >> theirs & 1) << ours for theirs, ours in enumerate(_LATCHES))
    s[words.DRAWN_CLOCK] = 3 * s[CYCLES] + s[LEFT_OVER]
    s[words.HIDDEN_COPY] = s[words.COLLIDED] = 0
    s[words.DIRTY] = ALL_OBJECTS


def copy_to_ale(s: np.ndarray, state: AleState) -> None:
    """Copies the hardware's words into an ale-py state of the same game; the rest of it stays.

    ale-py restores the numbers of an E0 cartridge's slices only, not their contents."""
    for theirs, ours in _SAME.items():
        if theirs in state:
            state[theirs] = s[getattr(words, ours)]
    state["NOT_Z"] = 1 - s[words.Z]
    state.ram[:] = s[RAM : RAM + 128]
    if state.cartridge_ram is not None:
        state.cartridge_ram[:] = s[words.CARTRIDGE_RAM : words.CARTRIDGE_RAM + 128]
    for slot in range(4):
        if state.cartridge == "E0":
            state[f"SLICE{slot}"] = s[SLICE + slot] >> 10

    for name, word in _DPC.items():
        if name in state:
            state[name] = s[word]
    if "MUSIC_FRACTION" in state:
        state["MUSIC_FRACTION"] = int(s[words.MUSIC_FRACTION]) * _FRACTION_UNIT // dpc.MUSIC_PERIOD

    state["FRAME_CLOCK"] = -s[LEFT_OVER]
    state["VSYNC_CLOCK"] = s[VSYNC_CLOCK] - (s[LEFT_OVER] if s[VSYNC_CLOCK] != _NEVER else 0)
    state["LAST_HMOVE_CLOCK"] = s[words.HMOVE_CLOCK] - s[LEFT_OVER]
    for name, (register, shift) in _REGISTERS.items():
        value = int(s[REGISTER + register]) >> shift
        state[name] = value * 0x01010101 if name.startswith("COLU") else value & 1 if state.is_flag(name) else value
    state["PRIORITY_AND_SCORE"] = (state["CTRLPF"] & 6) << 5
    state["PF"] = s[REGISTER + _PF0] >> 4 | s[REGISTER + _PF1] << 4 | s[REGISTER + _PF2] << 12
    state["DENABL"] = s[words.OLD_ENABL] >> 1 & 1
    for i, name in enumerate(_POSITIONS):
        state[name] = s[words.POSITION + i]
    for player in "01":
        graphics = state[f"DGRP{player}" if state[f"VDELP{player}"] else f"GRP{player}"]
        state[f"CURRENT_GRP{player}"] = MIRRORED[graphics] if state[f"REFP{player}"] else graphics
    ball = state["DENABL" if state["VDELBL"] else "ENABL"]
    missiles = [state[f"ENAM{i}"] and not state[f"RESMP{i}"] for i in "01"]
    enabled = (state["CURRENT_GRP0"], missiles[0], state["CURRENT_GRP1"], missiles[1], ball, state["PF"])
    state["ENABLED_OBJECTS"] = sum((value != 0) << bit for bit, value in enumerate(enabled))
    state["COLLISIONS"] = sum((int(s[words.COLLISIONS]) >> ours & 1) << theirs for theirs, ours in enumerate(_LATCHES))


def copy_game_from_ale(s: np.ndarray, state: AleState, saved: tuple[int | None, ...]) -> None:
    """Copies the words outside the hardware: paddles, counters, generators, and the rules' variables.

    saved: see GameRules. A generator that the state does not hold stays as it is."""
    for name in _BESIDES_HARDWARE:
        s[getattr(words, name)] = state[name]
    for generator in (SYSTEM_GENERATOR, ACTION_GENERATOR):
        numbers = state.generator(generator)
        if numbers is not None:
            s[generator : generator + GENERATOR_WORDS] = numbers
    for word, value in zip(saved, state.saved, strict=False):
        if word is not None:
            s[word] = value


def copy_game_to_ale(s: np.ndarray, state: AleState, saved: tuple[int | None, ...]) -> None:
    """Copies the same words into one of ale-py's states."""
    for name in _BESIDES_HARDWARE:
        state[name] = int(s[getattr(words, name)])
    for generator in (SYSTEM_GENERATOR, ACTION_GENERATOR):
        if state.generator(generator) is not None:
            state.set_generator(generator, s[generator : generator + GENERATOR_WORDS])
    for index, word in enumerate(saved[: len(state.saved)]):
        if word is not None:
            state.save(index, int(s[word]))
