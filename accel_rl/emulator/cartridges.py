"""Emulates cartridges: a ROM in 4 KB of address space. A larger ROM has circuits that switch banks.

A kind is named as in Kevin Horton's "Mostly Inclusive Atari 2600 Mapper / Selected Hardware Document": 2K, 4K; F8 and
F6 switch banks of 4 KB; SC adds RAM; E0 switches slices of 1 KB; FE takes the bank from address bit 13; DPC: dpc.py.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.dpc import dpc_read, dpc_write, reset_dpc
from accel_rl.emulator.state import BANK, CARTRIDGE, CARTRIDGE_RAM, PLAIN_END, PLAIN_FIRST, SLICE
from accel_rl.errors import UsageError

KINDS = ("2K", "4K", "F8", "F8SC", "F6", "F6SC", "E0", "FE", "DPC")
KIND_2K, KIND_4K, KIND_F8, KIND_F8SC, KIND_F6, KIND_F6SC, KIND_E0, KIND_FE, KIND_DPC = range(9)
# By kind: the number of banks that hot spots select (the last one at 0xFF9); the bank at power on; 1 if there is RAM;
# the addresses between which reads have no side effect.
BANKS = np.array([0, 0, 2, 2, 4, 4, 0, 0, 2], np.int32)
FIRST_BANK = np.array([0, 0, 1, 1, 0, 0, 0, 0, 1], np.int32)
HAS_RAM = np.array([0, 0, 0, 1, 0, 1, 0, 0, 0], np.int32)
FIRST_PLAIN = np.array([0, 0, 0, 0x100, 0, 0x100, 0, 0, 0x80], np.int32)
END_PLAIN = np.array([0x1000, 0x1000, 0xFF8, 0xFF8, 0xFF6, 0xFF6, 0xFE0, 0, 0xFC0], np.int32)


def identify(rom: bytes) -> str:
    """Returns the kind of cartridge that a ROM needs, from its size and its program.

    Raises UsageError if it is none of KINDS."""
    size = len(rom)
    if size in (2048, 4096):
        return "2K" if size == 2048 else "4K"
    if 10240 <= size <= 10496:  # two banks, 2 KB of graphics; some dumps add 255 random numbers
        return "DPC"
    if size not in (8192, 16384):
        sizes = "2, 4, 8, 10 (DPC) and 16 KB"
        raise UsageError(f"no cartridge of {size} bytes is supported: only {sizes} ({', '.join(KINDS)})")
    banks = [rom[start : start + 4096] for start in range(0, size, 4096)]
    kind = "F8" if size == 8192 else "F6"
    if all(bank[:128] == bank[128:256] for bank in banks):  # the RAM's two windows hold no program
        return kind + "SC"
    bank_switches = _count_accesses(rom, 0xFF8, 0xFF9)
    if kind == "F8" and _count_accesses(rom, 0xFE0, 0xFF7) > max(1, bank_switches):
        return "E0"
    starts = [bank[0xFFD] for bank in banks]  # FE's first bank is at 0xF000, its second at 0xD000
    if kind == "F8" and not bank_switches and starts[0] & 0x20 and not starts[1] & 0x20:
        return "FE"
    return kind


def _count_accesses(rom: bytes, first: int, last: int) -> int:
    """Counts the bytes of a bank that look like loads or stores at addresses from first to last."""
    opcodes = bytes.fromhex("8C 8D 8E AC AD AE CD 0C 2C")
    return sum(
        rom[at] in opcodes and rom[at + 2] & 0x10 > 0 and first <= (rom[at + 1] | rom[at + 2] << 8) & 0xFFF <= last
        for at in range(len(rom) - 2)
    )


def prepare(rom: bytes) -> np.ndarray:
    """Returns a ROM as the emulator reads it: one of 2 KB is repeated."""
    return np.frombuffer(rom * 2 if len(rom) == 2048 else rom, np.uint8)


@jit
def reset_cartridge(s):
    """Powers on a cartridge of kind s[CARTRIDGE]; leaves the RAM of F8SC and F6SC as it is."""
    kind = s[CARTRIDGE]
    s[PLAIN_FIRST] = FIRST_PLAIN[kind]
    s[PLAIN_END] = END_PLAIN[kind]
    _select_bank(s, FIRST_BANK[kind])
    if kind == KIND_E0:
        s[BANK] = 0
        for slot in range(4):
            s[SLICE + slot] = i32(0x400 * (4 + slot))
    elif kind == KIND_DPC:
        reset_dpc(s)


@jit
def _select_bank(s, bank):
    """Maps one 4 KB bank to the whole address space."""
    s[BANK] = bank
    for slot in range(4):
        s[SLICE + slot] = i32(0x1000 * bank + 0x400 * slot)


@jit
def cart_read(s, rom, address):
    """Reads a byte at an address with bit 12 set; the access may switch banks."""
    kind = s[CARTRIDGE]
    offset = i32(address & 0xFFF)
    _switch_banks(s, kind, offset)
    if kind == KIND_FE:
        return i32(rom[offset if address & 0x2000 else offset + 0x1000])
    if kind == KIND_DPC:
        return i32(dpc_read(s, rom, offset))
    if HAS_RAM[kind] and offset >> 7 == 1:
        return s[CARTRIDGE_RAM + (offset & 0x7F)]
    return i32(rom[s[SLICE + (offset >> 10)] + (offset & 0x3FF)])


@jit
def cart_write(s, rom, address, value):
    """Writes to an address with bit 12 set."""
    kind = s[CARTRIDGE]
    offset = i32(address & 0xFFF)
    _switch_banks(s, kind, offset)
    if kind == KIND_DPC:
        dpc_write(s, offset, value)
    elif HAS_RAM[kind] and offset < 0x80:
        s[CARTRIDGE_RAM + offset] = value


@jit
def _switch_banks(s, kind, offset):
    """Switches the bank or slice if the address is a hot spot."""
    bank = i32(offset - 0xFFA + BANKS[kind])
    if 0 <= bank < BANKS[kind]:
        _select_bank(s, bank)
    elif kind == KIND_E0 and 0xFE0 <= offset < 0xFF8:
        s[SLICE + (offset >> 3 & 3)] = i32(0x400 * (offset & 7))
