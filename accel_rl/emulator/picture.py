"""Draws the TIA's picture from the objects' masks, and finds collisions."""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.objects import (
    BALL,
    CTRLPF,
    MISSILE0,
    MISSILE1,
    PLAYER0,
    PLAYER1,
    PLAYFIELD,
    WORDS,
    move_stars,
    update_masks,
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

CLOCKS_PER_LINE, BLANK_CLOCKS, LINE_PIXELS, HMOVE_BLANK_PIXELS = 228, 68, 160, 8
u32, u64 = np.uint32, np.uint64
ALL_PIXELS = 2**64 - 1
# Each byte's bits as the bytes of a word: 0x00 or 0xFF.
SPREAD = np.zeros(256, np.uint64)
for _bit in range(8):
    SPREAD |= ((np.arange(256, dtype=np.uint64) >> u64(_bit)) & u64(1)) * u64(0xFF << 8 * _bit)
VBLANK, COLUP0, COLUP1, COLUPF, COLUBK = 0x01, 0x06, 0x07, 0x08, 0x09


@jit
def draw_until(s, screen, clock):
    """Completes collisions, and pixels if they are wanted, up to a clock of this frame."""
    first = CLOCKS_PER_LINE * s[FIRST_LINE]
    start = max(s[DRAWN_CLOCK], first)
    stop = min(clock, first + CLOCKS_PER_LINE * s[NUM_LINES])
    if start >= stop:
        return
    s[DRAWN_CLOCK] = i32(stop)
    line = start // CLOCKS_PER_LINE
    while start < stop:
        line_start = CLOCKS_PER_LINE * line
        if start == line_start and start > first:
            _start_line(s)
        left = max(start - line_start - BLANK_CLOCKS, 0)
        right = min(stop - line_start - BLANK_CLOCKS, LINE_PIXELS)
        if left < right:
            _draw_span(s, screen, line - s[FIRST_LINE], left, right)
        line += 1
        start = line_start + CLOCKS_PER_LINE


@jit
def _start_line(s):
    """Ends what held for the rest of the line before."""
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
        span = -1
        if left > 32 * word:
            span = -1 << (left - 32 * word)
        if right < 32 * word + 32:
            span &= (1 << (right - 32 * word)) - 1
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
    """Paints a span from the masks, eight pixels at a time: one byte of a mask, one 64-bit word of the picture."""
    pixels = screen[u32(s[FRAME_BUFFER]), u32(row)].view(np.uint64)
    first, last = u32(left >> 3), u32((right + 7) >> 3)
    if s[REPEATED] and right - left == LINE_PIXELS:
        above = screen[u32(s[FRAME_BUFFER]), u32(row - 1)].view(np.uint64)
        for eight in range(LINE_PIXELS // 8):
            pixels[eight] = above[eight]
        return
    colour_bk = _eight_pixels(s, COLUBK)
    from_bk_to_pf = colour_bk ^ _eight_pixels(s, COLUPF)
    from_bk_to_p0 = colour_bk ^ _eight_pixels(s, COLUP0)
    from_bk_to_p1 = colour_bk ^ _eight_pixels(s, COLUP1)
    priority = s[REGISTER + CTRLPF] & 4
    # Together with priority, the score mode colours the playfield only where it is alone.
    score = s[REGISTER + CTRLPF] & 2 and (not priority or s[ENABLED] == 1 << PLAYFIELD)
    left_edge, right_edge = pixels[first], pixels[u32(last - 1)]
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
        for eight in range(max(first, u32(4 * word)), min(last, u32(4 * word + 4))):
            shift = u32(8 * (eight & 3))
            colours = colour_bk ^ (from_bk_to_pf & SPREAD[pf >> shift & 0xFF])
            colours ^= from_bk_to_p0 & SPREAD[p0 >> shift & 0xFF]
            pixels[eight] = colours ^ (from_bk_to_p1 & SPREAD[p1 >> shift & 0xFF])
    if left < HMOVE_BLANK_PIXELS and s[HMOVE_BLANK] and s[COMB]:
        pixels[0] = 0
    if left & 7:
        kept = ~(u64(ALL_PIXELS) << u64(8 * (left & 7)))
        pixels[first] ^= (pixels[first] ^ left_edge) & kept
    if right & 7:
        kept = u64(ALL_PIXELS) << u64(8 * (right & 7))
        pixels[u32(last - 1)] ^= (pixels[u32(last - 1)] ^ right_edge) & kept


@jit
def _eight_pixels(s, register):
    """Returns eight pixels of a colour, black while the picture is blank."""
    return u64(0) if s[REGISTER + VBLANK] & 2 else u64(s[REGISTER + register]) * u64(0x0101010101010101)
