"""Reads and writes ale-py's saved states: `ALEInterface.cloneState().__getstate__()`.

They are sequences of 32-bit words and of strings that begin with their length; each part of the console begins with
its name. That makes ale-py an oracle for every register: change a word, restore the state, run a frame, compare.
"""

import struct

import numpy as np

_TRUE, _FALSE = 0xFAB1FAB2, 0xBAD1BAD2

# Words by name; those that end with "?" are true or false. Without dots: words that the emulator has no use for.
_HEAD = "LEFT_PADDLE RIGHT_PADDLE FRAME EPISODE_FRAME MODE DIFFICULTY"
_SYSTEM = "CYCLES"
_CPU = "A X Y SP . PC N? V? B? D? I? NOT_Z? C?"
_RIOT = "TIMER TIMER_SHIFT TIMER_SET_CYCLE TIMER_INTERRUPT_CYCLE TIMER_READ_AFTER_INTERRUPT? DDRA"
_TIA = """
    FRAME_CLOCK START_DISPLAY_CLOCK STOP_DISPLAY_CLOCK UPDATE_CLOCK CLOCKS_TO_LINE_END LAST_FRAME_LINES LINE
    VSYNC_CLOCK ENABLED_OBJECTS VSYNC VBLANK NUSIZ0 NUSIZ1 COLUP0 COLUP1 COLUPF COLUBK CTRLPF SCORE? REFP0? REFP1? PF
    GRP0 GRP1 DGRP0 DGRP1 ENAM0? ENAM1? ENABL? DENABL? HMP0 HMP1 HMM0 HMM1 HMBL VDELP0? VDELP1? VDELBL?
    RESMP0? RESMP1? COLLISIONS POSP0 POSP1 POSM0 POSM1 POSBL CURRENT_GRP0 CURRENT_GRP1 LAST_HMOVE_CLOCK HMOVE_BLANK? M0_COSMIC_ARK?
    M0_COSMIC_ARK_COUNTER DUMP_ENABLED? DUMP_DISABLED_CYCLE"""
_CARTRIDGES = {
    "2K": "",
    "4K": "",
    "F8": "BANK",
    "F8SC": "BANK . *CARTRIDGE_RAM",
    "F6": "BANK",
    "F6SC": "BANK . *CARTRIDGE_RAM",
    "E0": ". SLICE0 SLICE1 SLICE2 SLICE3",
    "FE": "",
    "DPC": "BANK . {TOP} . {BOTTOM} . {COUNTER} . {FLAG} . MUSIC5? MUSIC6? MUSIC7? RANDOM MUSIC_CYCLES MUSIC_FRACTION",
}


class AleState:
    """One saved state; its words are read and written by name: `state["A"]`, `state["POSP0"] = 80`."""

    def __init__(self, data: bytes):
        self._data = bytearray(data)
        self._offsets: dict[str, int] = {}
        self._flags: set[str] = set()
        self._add(_HEAD, 0)
        at = self._add(_SYSTEM, self._find("System", 0))
        at = self._add(_CPU, self._find("M6502Low", at))
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
        self._add(names.partition("*")[0], self._cartridge_words)

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

    def names(self) -> list[str]:
        """Returns the names of all words."""
        return [name for name in self._offsets if name != "."]

    @property
    def ram(self) -> np.ndarray:
        """The RIOT's RAM; writing to it changes the state."""
        return np.frombuffer(self._data, "<u4", 128, self._ram)

    @property
    def cartridge_ram(self) -> np.ndarray | None:
        """The cartridge's RAM (F8SC, F6SC), or None; writing to it changes the state."""
        return None if self._cartridge_ram is None else np.frombuffer(self._data, "<u4", 128, self._cartridge_ram)

    def __bytes__(self) -> bytes:
        return bytes(self._data)
