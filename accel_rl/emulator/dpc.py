"""Emulates David Crane's Display Processor Chip in Pitfall II (US patent 4,644,495), as ale-py does.

Eight data fetchers read 2 KB of graphics backwards. In the cartridge's address space, fetcher n returns its next byte
at 0x08 + n, the same at 0x10 + n if its flag is set (else 0), and the flag at 0x38 + n. The flag is set when the
counter's low byte equals the fetcher's top, and cleared when it equals the bottom. Fetchers 5 to 7 can make music
instead: their counters run by themselves, and the flags are three square waves. A shift register makes random numbers.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import BANK, CARTRIDGE_RAM, CYCLES, MUSIC_CYCLE, MUSIC_FRACTION

# Words in the cartridge's RAM, one for each fetcher
TOP, BOTTOM, COUNTER, FLAG, IS_MUSIC = range(CARTRIDGE_RAM, CARTRIDGE_RAM + 40, 8)
RANDOM = CARTRIDGE_RAM + 40

GRAPHICS = 0x2000  # offset in the ROM, after two banks
# The 15,750 Hz oscillator makes MUSIC_STEPS steps in MUSIC_PERIOD cycles of the 1.1931817 MHz processor.
MUSIC_STEPS, MUSIC_PERIOD = 1890, 143183


@jit
def reset_dpc(s):
    """Powers the chip on."""
    for word in range(TOP, RANDOM):
        s[word] = 0
    s[RANDOM] = 1
    s[MUSIC_CYCLE] = 0
    s[MUSIC_FRACTION] = 0


@jit
def dpc_read(s, rom, offset):
    """Reads a register (below 0x40) or the current bank."""
    if offset < 0x80 or offset >= 0xFC0:
        _step_random(s)
    if offset >= 0x40:
        return i32(rom[0x1000 * s[BANK] + offset])
    fetcher = offset & 7
    function = offset >> 3
    counter = s[COUNTER + fetcher]
    if counter & 0xFF == s[TOP + fetcher]:
        s[FLAG + fetcher] = 0xFF
    elif counter & 0xFF == s[BOTTOM + fetcher]:
        s[FLAG + fetcher] = 0
    value = i32(0)
    if function == 0:
        value = s[RANDOM] if fetcher < 4 else _read_music(s)
    elif function == 1:
        value = i32(rom[GRAPHICS + 0x7FF - counter])
    elif function == 2:
        value = i32(rom[GRAPHICS + 0x7FF - counter] & s[FLAG + fetcher])
    elif function == 7:
        value = s[FLAG + fetcher]
    if not s[IS_MUSIC + fetcher]:
        s[COUNTER + fetcher] = (s[COUNTER + fetcher] - 1) & 0x7FF
    return value


@jit
def dpc_write(s, offset, value):
    """Writes a register (0x40 to 0x7F)."""
    _step_random(s)
    fetcher = offset & 7
    counter = s[COUNTER + fetcher]
    if offset < 0x40 or offset >= 0x80:
        return
    if offset < 0x48:
        s[TOP + fetcher] = value
        s[FLAG + fetcher] = 0
    elif offset < 0x50:
        s[BOTTOM + fetcher] = value
    elif offset < 0x58:  # the counter's low byte, which starts at the top for music
        s[COUNTER + fetcher] = i32(counter & 0x700 | (s[TOP + fetcher] if s[IS_MUSIC + fetcher] else value))
    elif offset < 0x60:
        s[COUNTER + fetcher] = i32(counter & 0xFF | (value & 7) << 8)
        if fetcher >= 5:
            s[IS_MUSIC + fetcher] = value >> 4 & 1
    elif 0x70 <= offset < 0x78:
        s[RANDOM] = 1


@jit
def _step_random(s):
    """Steps the shift register, whose taps are bits 3, 4, 5 and 7."""
    bits = s[RANDOM]
    s[RANDOM] = (bits << 1 | 1 ^ (bits >> 3 ^ bits >> 4 ^ bits >> 5 ^ bits >> 7) & 1) & 0xFF


@jit
def _read_music(s):
    """Returns the amplitude of the three square waves at the time s[CYCLES]."""
    steps = np.int64(s[MUSIC_FRACTION]) + np.int64(s[CYCLES] - s[MUSIC_CYCLE]) * MUSIC_STEPS
    s[MUSIC_CYCLE] = s[CYCLES]
    s[MUSIC_FRACTION] = i32(steps % MUSIC_PERIOD)
    steps //= MUSIC_PERIOD
    loudness = i32(0)
    for fetcher in range(5, 8):
        if not s[IS_MUSIC + fetcher]:
            continue
        if steps > 0:
            top = s[TOP + fetcher]
            low = i32((s[COUNTER + fetcher] & 0xFF) - steps % (top + 1)) if top else i32(0)
            if low < 0:
                low = i32(low + top + 1)
            s[COUNTER + fetcher] = i32(s[COUNTER + fetcher] & 0x700 | low)
            if low <= s[BOTTOM + fetcher]:
                s[FLAG + fetcher] = 0
            elif low <= top:
                s[FLAG + fetcher] = 0xFF
        if s[FLAG + fetcher]:
            loudness = i32(loudness + fetcher - 1)
    return loudness
