"""Draws the TIA's picture from the objects' masks, and finds collisions."""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.objects import (
    WORDS,
    move_stars,
    update_masks,
)
from accel_rl.emulator.registers import (
    BALL,
    BLANK_CLOCKS,
    CLOCKS_PER_LINE,
    COLUBK,
    COLUP0,
    COLUP1,
    COLUPF,
    CTRLPF,
    LINE_PIXELS,
    MISSILE0,
    MISSILE1,
    PLAYER0,
    PLAYER1,
    PLAYFIELD,
    VBLANK,
)
from accel_rl.emulator.state import (
    COLLIDED,
    COLLISIONS,
    COMB,
    COSMIC_ARK,
    DIRTY,
    DRAWN_CLOCK,
    ENABLED,
    FIRST_LINE,
    FRAME_BUFFER,
    HIDDEN_COPY,
    HMOVE_BLANK,
    MASK,
    NUM_LINES,
    PAINT,
    REFLECT,
    REGISTER,
    REPEATED,
)

HMOVE_BLANK_PIXELS = 8
PICTURE_LINES = 320  # capacity of each of the two pictures
u8, u32, u64 = np.uint8, np.uint32, np.uint64
BYTES = sum((np.arange(256, dtype=u64) >> u64(k) & u64(1)) << u64(8 * k) for k in range(8))  # 1 for each bit of a byte


@jit
def draw_until(s, screen, clock):
    """Completes collisions up to a clock of this frame, and pixels if it is painted."""
    first = i32(CLOCKS_PER_LINE * s[FIRST_LINE])
    start = i32(max(s[DRAWN_CLOCK], first))
    stop = i32(min(clock, i32(first + CLOCKS_PER_LINE * s[NUM_LINES])))
    if start >= stop:
        return
    s[DRAWN_CLOCK] = stop
    line = i32(u32(start) // u32(CLOCKS_PER_LINE))
    while start < stop:
        line_start = i32(CLOCKS_PER_LINE * line)
        if start == line_start and start > first:
            _start_line(s)
        left = i32(max(start - line_start - BLANK_CLOCKS, 0))
        right = i32(min(stop - line_start - BLANK_CLOCKS, LINE_PIXELS))
        if left < right:
            _draw_span(s, screen, i32(line - s[FIRST_LINE]), left, right)
        line = i32(line + 1)
        start = i32(line_start + CLOCKS_PER_LINE)


@jit
def _start_line(s):
    """Ends the effects that lasted until the end of the previous line."""
    if s[HIDDEN_COPY]:
        s[HIDDEN_COPY] = 0
        s[DIRTY] |= 1 << PLAYER0 | 1 << PLAYER1
    if s[REFLECT] != s[REGISTER + CTRLPF] & 1:
        s[REFLECT] ^= 1
        s[DIRTY] |= 1 << PLAYFIELD
    if s[COSMIC_ARK]:
        move_stars(s)


@jit
def _draw_span(s, screen, row, left, right):
    """Draws pixels left to right - 1 of a row."""
    if s[DIRTY]:
        update_masks(s)
        s[COLLIDED] = s[REPEATED] = 0
    blank = s[REGISTER + VBLANK] & 2
    if not s[COLLIDED] and not blank and s[ENABLED] & (s[ENABLED] - 1):
        _collide(s, left, right)
        if left == 0 and right == LINE_PIXELS:
            s[COLLIDED] = 1
    if s[PAINT]:
        _paint(s, screen, row, left, right)
    s[REPEATED] = i32(right - left == LINE_PIXELS and not s[HMOVE_BLANK])
    if left < HMOVE_BLANK_PIXELS <= right:
        s[HMOVE_BLANK] = 0


@jit
def _collide(s, left, right):
    """Latches the collisions of a span."""
    for word in range(left >> 5, (right + 31) >> 5):
        span = _span(word, left, right)
        at = MASK + word
        p0 = s[at + WORDS * PLAYER0] & span
        p1 = s[at + WORDS * PLAYER1] & span
        m0 = s[at + WORDS * MISSILE0] & span
        m1 = s[at + WORDS * MISSILE1] & span
        bl = s[at + WORDS * BALL] & span
        pf = s[at + WORDS * PLAYFIELD] & span
        players, missiles = p0 | p1, m0 | m1
        if not (p0 & p1 | m0 & m1 | players & missiles | (players | missiles) & (bl | pf) | bl & pf):
            continue
        latches = ((m0 & p1) != 0) << 1 | ((m0 & p0) != 0)
        latches |= ((m1 & p0) != 0) << 3 | ((m1 & p1) != 0) << 2
        latches |= ((p0 & pf) != 0) << 5 | ((p0 & bl) != 0) << 4
        latches |= ((p1 & pf) != 0) << 7 | ((p1 & bl) != 0) << 6
        latches |= ((m0 & pf) != 0) << 9 | ((m0 & bl) != 0) << 8
        latches |= ((m1 & pf) != 0) << 11 | ((m1 & bl) != 0) << 10
        latches |= ((bl & pf) != 0) << 13
        latches |= ((p0 & p1) != 0) << 15 | ((m0 & m1) != 0) << 14
        s[COLLISIONS] |= i32(latches)


@jit
def _paint(s, screen, row, left, right):
    """Paints a span from the masks, 8 pixels at a time."""
    line = LINE_PIXELS * (PICTURE_LINES * s[FRAME_BUFFER] + row)
    if s[REPEATED] and right - left == LINE_PIXELS:
        for at in range(line, line + LINE_PIXELS):
            screen[at] = screen[at - LINE_PIXELS]
        return
    colour_p0, colour_p1 = u8(s[REGISTER + COLUP0]), u8(s[REGISTER + COLUP1])
    colour_pf, colour_bk = u8(s[REGISTER + COLUPF]), u8(s[REGISTER + COLUBK])
    if s[REGISTER + VBLANK] & 2:
        colour_p0 = colour_p1 = colour_pf = colour_bk = u8(0)
    priority = s[REGISTER + CTRLPF] & 4
    # With priority on, the score mode colors the playfield only where nothing else is.
    score = s[REGISTER + CTRLPF] & 2 and (not priority or s[ENABLED] == 1 << PLAYFIELD)
    for word in range(left >> 5, (right + 31) >> 5):
        at = MASK + word
        p0 = s[at + WORDS * PLAYER0] | s[at + WORDS * MISSILE0]
        p1 = s[at + WORDS * PLAYER1] | s[at + WORDS * MISSILE1]
        pf, bl = s[at + WORDS * PLAYFIELD], s[at + WORDS * BALL]
        if score:
            left_half = 0 if word > 2 else 0xFFFF if word == 2 else -1
            p0 |= pf & left_half
            p1 |= pf & ~left_half
            pf = 0
        pf |= bl
        if priority:
            p0 &= ~pf
            p1 &= ~pf
        p1 &= ~p0
        pf &= ~(p0 | p1)
        at, span = line + 32 * word, _span(word, left, right)
        if span == -1 and not p0 | p1 | pf:
            for pixel in range(at, at + 32):
                screen[pixel] = colour_bk
        else:
            background = ~(p0 | p1 | pf)
            for byte in range(0, 32, 8):
                colours = _colours(p0, byte, colour_p0) | _colours(p1, byte, colour_p1)
                colours |= _colours(pf, byte, colour_pf) | _colours(background, byte, colour_bk)
                _put_pixels(screen, at + byte, colours, u32(span) >> u32(byte) & u32(0xFF))
    if left < HMOVE_BLANK_PIXELS and s[HMOVE_BLANK] and s[COMB]:
        for x in range(left, min(right, HMOVE_BLANK_PIXELS)):
            screen[line + x] = 0


@jit
def _colours(mask, byte, colour):
    """Returns eight pixels, uint64: the color where the mask's bits from bit `byte` on are set, else 0."""
    return BYTES[u32(mask) >> u32(byte) & u32(0xFF)] * u64(colour)


@jit
def _put_pixels(screen, at, colours, shown):
    """Writes those of eight pixels whose bit in `shown` is set. The compiler merges the eight accesses into one."""
    if shown != 0xFF:
        before = u64(0)
        for pixel in range(8):
            before |= u64(screen[at + pixel]) << u64(8 * pixel)
        kept = ~(BYTES[shown] * u64(0xFF))
        colours = colours & ~kept | before & kept
    for pixel in range(8):
        screen[at + pixel] = u8(colours >> u64(8 * pixel))


@jit
def _span(word, left, right):
    """Returns the bits of a mask's word that are in the span from left to right - 1."""
    span = -1
    if left > 32 * word:
        span = -1 << (left - 32 * word)
    if right < 32 * word + 32:
        span &= (1 << (right - 32 * word)) - 1
    return span
