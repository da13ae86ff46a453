"""Computes the TIA's six objects: their pixels in a line as bit masks, and their motion.

A mask has 160 bits in five words; bit k of word w is pixel 32 w + k.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.registers import (
    BALL,
    BLANK_CLOCKS,
    CTRLPF,
    ENABL,
    ENAM0,
    GRP0,
    HMP0,
    MISSILE0,
    NUSIZ0,
    PF0,
    PF1,
    PF2,
    PLAYFIELD,
    REFP0,
    RESBL,
    RESM0,
    RESM1,
    RESMP0,
    RESP1,
    VDELBL,
    VDELP0,
)
from accel_rl.emulator.state import (
    COSMIC_ARK_SHAPE,
    COSMIC_ARK_STEP,
    DIRTY,
    ENABLED,
    HIDDEN_COPY,
    MASK,
    OLD_ENABL,
    OLD_GRP0,
    POSITION,
    REFLECT,
    REGISTER,
)

WORDS = 5

# By NUSIZ's lowest three bits: where a second and a third copy begin (0: none), and the width of a player's pixel.
COPY_2 = np.array([0, 16, 32, 16, 64, 0, 32, 0], np.int32)
COPY_3 = np.array([0, 0, 0, 32, 0, 0, 64, 0], np.int32)
PIXEL_WIDTH = np.array([1, 1, 1, 1, 1, 2, 1, 4], np.int32)

# Special position resets shortly after HMOVE: register, clocks since HMOVE, clock in the line, position.
LATE_RESETS = np.array(
    [
        (RESM0, 60, 69, 8),
        (RESM1, 9, 18, 3),
        (RESBL, 9, 18, 3),
        (RESBL, 18, 27, 5),
        (RESBL, 21, 30, 6),
        (RESBL, 54, 60, 10),
        (RESBL, 54, 69, 10),
    ],
    np.int32,
)

# Missile 0 as a star of Cosmic Ark: its motion to the left and its shape in each of four lines.
STAR_MOTION = np.array([18, 33, 0, 17], np.int32)
STAR_SHAPE = np.array([0, 1, 2, 0], np.int32)


def _stretched(width: int) -> np.ndarray:
    """Returns each byte with every bit repeated width times."""
    byte = np.arange(256, dtype=np.int64)
    wide = np.zeros_like(byte)
    for bit in range(8):
        wide |= (byte >> bit & 1) * ((1 << width) - 1) << bit * width
    return wide


_BYTES = np.arange(256, dtype=np.int64)
MIRRORED = sum((_BYTES >> bit & 1) << 7 - bit for bit in range(8)).astype(np.int32)  # type: ignore[union-attr]
WIDE = np.stack([_BYTES, _stretched(2), _BYTES, _stretched(4)])  # [pixel width - 1, byte]


@jit
def update_masks(s):
    """Updates the masks that are out of date."""
    dirty = s[DIRTY]
    s[DIRTY] = 0
    for player in range(2):
        if dirty >> player & 1:
            graphics = s[OLD_GRP0 + player] if s[REGISTER + VDELP0 + player] & 1 else s[REGISTER + GRP0 + player]
            if not s[REGISTER + REFP0 + player] & 8:
                graphics = MIRRORED[graphics]
            width = PIXEL_WIDTH[s[REGISTER + NUSIZ0 + player] & 7]
            hidden = s[HIDDEN_COPY] >> player & 1
            _show(s, player, WIDE[width - 1, graphics], player, i32(width > 1), hidden)
    for missile in range(2):
        if dirty >> MISSILE0 + missile & 1:
            shown = s[REGISTER + ENAM0 + missile] & 2 and not s[REGISTER + RESMP0 + missile] & 2
            size = s[REGISTER + NUSIZ0 + missile]
            if missile == 0 and s[COSMIC_ARK_SHAPE]:
                size |= 0x10
                shown = shown and s[COSMIC_ARK_SHAPE] != 2
            pixels = _pixels(size) if shown else 0
            _show(s, MISSILE0 + missile, pixels, missile, 0, 0)
    if dirty >> BALL & 1:
        shown = (s[OLD_ENABL] if s[REGISTER + VDELBL] & 1 else s[REGISTER + ENABL]) & 2
        _show(s, BALL, _pixels(s[REGISTER + CTRLPF]) if shown else 0, -1, 0, 0)
    if dirty >> PLAYFIELD & 1:
        _show_playfield(s)


@jit
def _pixels(size):
    """Returns the pixels of a missile or the ball, lowest bit first; the register `size` holds its width."""
    return (1 << (1 << (size >> 4 & 3))) - 1


@jit
def _show(s, item, pixels, player, offset, hidden):
    """Sets a mask: at most 32 pixels at the object's position, and at the copies in the player's NUSIZ."""
    mask = MASK + WORDS * item
    for word in range(WORDS):
        s[mask + word] = 0
    if pixels == 0:
        s[ENABLED] &= ~(1 << item)
        return
    s[ENABLED] |= 1 << item
    position = s[POSITION + item] + offset
    if not hidden:
        _put(s, mask, pixels, position)
    if player >= 0:
        copies = s[REGISTER + NUSIZ0 + player] & 7
        if COPY_2[copies]:
            _put(s, mask, pixels, position + COPY_2[copies])
        if COPY_3[copies]:
            _put(s, mask, pixels, position + COPY_3[copies])


@jit
def _put(s, mask, pixels, position):
    """Adds up to 32 pixels to a mask; they wrap around at the right edge."""
    if position >= 160:
        position -= 160
    word = position >> 5
    wide = np.int64(pixels) << (position & 31)
    s[mask + word] |= i32(wide)
    s[mask + (word + 1 if word < 4 else 0)] |= i32(wide >> 32)


@jit
def _show_playfield(s):
    """Sets the playfield's mask: PF0 (bits 4 to 7), PF1 (mirrored), PF2, four pixels a bit, twice or reflected."""
    mask = MASK + WORDS * PLAYFIELD
    a, b, c = s[REGISTER + PF0] >> 4, MIRRORED[s[REGISTER + PF1]], s[REGISTER + PF2]
    left = np.int64(a | b << 4 | c << 12)  # 20 bits
    right = np.int64(MIRRORED[c] | MIRRORED[b] << 8 | MIRRORED[a << 4] << 16) if s[REFLECT] else left
    bits = left | right << 20  # 40 bits
    s[ENABLED] = s[ENABLED] | 1 << PLAYFIELD if bits else s[ENABLED] & ~(1 << PLAYFIELD)
    for word in range(WORDS):
        s[mask + word] = i32(WIDE[3, bits >> 8 * word & 0xFF])


@jit
def motion(cycle, value):
    """Returns how many pixels HMOVE, written at this cycle of a line, moves an object to the right.

    HMOVE gives each object up to 15 extra clocks, one every four clocks. They count only during the line's blank, which
    ends 8 clocks later than usual if HMOVE came in time (Stella Programmer's Guide, page 41). value: the object's HMxx
    register.
    """
    clocks = (value >> 4) ^ 8  # requested extra clocks
    if cycle == 75:
        cycle = -1  # in time for the next line
    if cycle <= 20:
        return i32(8 - min(clocks, (70 - 3 * cycle) >> 2))
    if cycle < 55:
        return i32(0)
    return i32(-max(0, clocks - ((222 - 3 * cycle) >> 2)))


@jit
def move(s, cycle):
    """Moves players, missiles and ball as HMOVE does at this cycle of a line."""
    for item in range(5):
        distance = motion(cycle, s[REGISTER + HMP0 + item])
        if distance:
            position = s[POSITION + item] + distance
            s[POSITION + item] = i32(
                position - 160 if position >= 160 else position + 160 if position < 0 else position
            )
            s[DIRTY] |= i32(1 << item)


@jit
def move_stars(s):
    """Moves missile 0 on every line, as in Cosmic Ark, which changes HMM0 while HMOVE is active."""
    step = s[COSMIC_ARK_STEP] + 1 & 3
    s[COSMIC_ARK_STEP] = step
    s[COSMIC_ARK_SHAPE] = STAR_SHAPE[step]
    position = s[POSITION + MISSILE0] - STAR_MOTION[step]
    s[POSITION + MISSILE0] = i32(position + 160 if position < 0 else position)
    s[DIRTY] |= 1 << MISSILE0


@jit
def reset_position(register, line_clock, since_hmove):
    """Returns the position that RESPx, RESMx or RESBL gives its object when written at this clock of a line."""
    for i in range(len(LATE_RESETS)):
        special = LATE_RESETS[i]
        if special[0] == register and special[1] == since_hmove and special[2] == line_clock:
            return special[3]
    delay = 5 if register <= RESP1 else 4
    if line_clock <= BLANK_CLOCKS:
        return i32(delay - 2)
    return i32((line_clock - BLANK_CLOCKS + delay) % 160)


@jit
def hides_copy(s, player, position):
    """Returns the effect on the rest of the line of a RESPx that moves a player to position.

    0: the first copy is hidden. 1: the same, after the copy that is being drawn. -1: all copies are shown."""
    size = s[REGISTER + NUSIZ0 + player] & 7
    distance = position - s[POSITION + player]
    if distance < 0:
        distance += 160
    for copy in range(3):
        start = 0
        if copy == 1:
            start = COPY_2[size]
        elif copy == 2:
            start = COPY_3[size]
        past = distance - start
        if 0 <= past < 4:
            return -1
        if 4 <= past < 4 + 8 * PIXEL_WIDTH[size]:
            return 1
    return 0
