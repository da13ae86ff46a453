"""Emulates cartridges: a ROM behind 4 KB of address space, with circuits of its own if it is larger.

A kind is named as in Kevin Horton's "Mostly Inclusive Atari 2600 Mapper / Selected Hardware Document".
"""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import BANK, CARTRIDGE, PLAIN_END, PLAIN_FIRST, SLICE

KINDS = ("2K", "4K", "F8", "F8SC", "F6", "F6SC", "E0", "FE", "DPC")
KIND_2K, KIND_4K, KIND_F8, KIND_F8SC, KIND_F6, KIND_F6SC, KIND_E0, KIND_FE, KIND_DPC = range(9)


@jit
def reset_cartridge(s):
    """Switches a cartridge of the kind s[CARTRIDGE] on."""
    s[PLAIN_FIRST] = 0
    s[PLAIN_END] = 0x1000
    _select_bank(s, i32(0))
    if s[CARTRIDGE] == KIND_2K:
        s[SLICE + 2] = 0
        s[SLICE + 3] = 0x400
    elif s[CARTRIDGE] == KIND_F8:
        s[PLAIN_END] = 0xFF8
        _select_bank(s, i32(1))


@jit
def _select_bank(s, bank):
    """Puts one 4 KB bank behind the whole address space."""
    s[BANK] = bank
    for slot in range(4):
        s[SLICE + slot] = i32(0x1000 * bank + 0x400 * slot)


@jit
def cart_read(s, rom, address):
    """Reads a byte at an address with bit 12 set, and does what the circuit does at such an access."""
    offset = i32(address & 0xFFF)
    _switch_bank(s, offset)
    return i32(rom[s[SLICE + (offset >> 10)] + (offset & 0x3FF)])


@jit
def cart_write(s, rom, address, value):
    """Writes to an address with bit 12 set."""
    _switch_bank(s, i32(address & 0xFFF))


@jit
def _switch_bank(s, offset):
    """Selects a bank when one of the hot spots is read or written."""
    if s[CARTRIDGE] == KIND_F8 and (offset == 0xFF8 or offset == 0xFF9):
        _select_bank(s, i32(offset - 0xFF8))
