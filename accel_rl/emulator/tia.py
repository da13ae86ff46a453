"""Emulates the TIA's registers: frames, WSYNC, players, missiles, ball, playfield, collisions, inputs.

registers.py names the registers and the effects of writes. Pictures and collisions are brought up to date only when a
register changes, when a collision is read, and at the end of a frame.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.objects import (
    PIXEL_WIDTH,
    hides_copy,
    move,
    reset_position,
)
from accel_rl.emulator.picture import (
    draw_until,
)
from accel_rl.emulator.registers import (
    ALL_OBJECTS,
    BALL,
    BITS,
    BLANK_CLOCKS,
    CLOCKS_PER_LINE,
    COLOUR,
    COLUBK,
    COLUP0,
    CTRLPF,
    CXCLR,
    DELAY,
    EFFECT,
    ENABL,
    GRAPHICS,
    GRP0,
    GRP1,
    HMBL,
    HMCLR,
    HMM0,
    HMOVE,
    HMP0,
    MISSILE0,
    MOTION,
    NOTHING,
    NUSIZ0,
    OBJECTS,
    OTHER,
    PLAYER0,
    PLAYER1,
    PLAYER_SIZE,
    PLAYFIELD_BITS,
    PLAYFIELD_DELAY,
    RESBL,
    RESMP0,
    RESMP1,
    RESP0,
    RESP1,
    STORES,
    VBLANK,
    VDELBL,
    VDELP0,
    VDELP1,
    VSYNC,
    WSYNC,
)
from accel_rl.emulator.state import (
    COLLIDED,
    COLLISIONS,
    COLOUR_LOSS,
    COSMIC_ARK,
    COSMIC_ARK_SHAPE,
    COSMIC_ARK_STEP,
    CYCLES,
    DATA_BUS,
    DIRTY,
    DRAWN_CLOCK,
    DUMP_END,
    FRAME_BUFFER,
    HIDDEN_COPY,
    HMOVE_BLANK,
    HMOVE_CLOCK,
    INPT4,
    INPT5,
    LAST_ACCESS_WAS_READ,
    LEFT_OVER,
    MASK,
    MAX_LINE,
    MUSIC_CYCLE,
    OLD_ENABL,
    OLD_GRP0,
    OLD_GRP1,
    PADDLE,
    PADDLES_DUMPED,
    PAINT,
    PAL,
    POSITION,
    REFLECT,
    REGISTER,
    REPEATED,
    STOP,
    TIMER_INTERRUPT_CYCLE,
    TIMER_SET_CYCLE,
    VSYNC_CLOCK,
)

u32 = np.uint32
INPT0_READ, INPT4_READ, INPT5_READ = 0x08, 0x0C, 0x0D
STARS_CLOCKS = 63  # clocks after HMOVE at which a change of HMM0 starts Cosmic Ark's stars
RIGHT_HALF_CLOCK = BLANK_CLOCKS + 79
_NEVER = 2**31 - 1
PAINT_EAGERLY = 2  # a value of s[PAINT]


@jit
def reset_tia(s):
    """Powers the TIA on: all registers are 0."""
    for word in range(VSYNC_CLOCK, MASK):
        s[word] = 0
    s[LEFT_OVER] = 0
    s[VSYNC_CLOCK] = _NEVER
    s[DIRTY] = ALL_OBJECTS


@jit
def start_frame(s):
    """Begins a frame: time restarts with the clocks left over from the last frame's line."""
    cycles = s[CYCLES]
    clock = i32(3 * cycles + s[LEFT_OVER])
    s[COLOUR_LOSS] = s[PAL] & clock // CLOCKS_PER_LINE
    for colour in range(REGISTER + COLUP0, REGISTER + COLUBK + 1):
        s[colour] = s[colour] & 0xFE | s[COLOUR_LOSS]
    s[LEFT_OVER] = clock % CLOCKS_PER_LINE
    passed = i32(clock - s[LEFT_OVER])
    s[VSYNC_CLOCK] -= passed
    s[HMOVE_CLOCK] -= passed
    s[DUMP_END] -= cycles
    s[TIMER_SET_CYCLE] -= cycles
    s[TIMER_INTERRUPT_CYCLE] -= cycles
    s[MUSIC_CYCLE] -= cycles
    s[CYCLES] = 0
    s[STOP] = 0
    s[DRAWN_CLOCK] = s[REPEATED] = 0
    s[FRAME_BUFFER] ^= 1


@jit
def end_frame(s, screen):
    """Finishes the picture of the frame that has ended."""
    draw_until(s, screen, i32(3 * s[CYCLES] + s[LEFT_OVER]))


@jit
def tia_write(s, screen, register, value):
    """Writes a register at the time s[CYCLES]; sets s[STOP] if the write ends the frame.

    It first completes the picture so far, unless the write has no visible effect."""
    clock = i32(3 * s[CYCLES] + s[LEFT_OVER])
    if clock >= CLOCKS_PER_LINE * (s[MAX_LINE] + 1):
        s[STOP] = 1
    line_clock = i32(u32(clock) % u32(CLOCKS_PER_LINE))
    if s[PAINT] == PAINT_EAGERLY:
        delay = DELAY[register]
        if EFFECT[register] == PLAYFIELD_BITS:
            delay = PLAYFIELD_DELAY[u32(line_clock) // u32(3) & u32(3)]
        draw_until(s, screen, i32(clock + delay))
    if register == WSYNC:
        if s[LAST_ACCESS_WAS_READ] and line_clock:
            s[CYCLES] += i32(76 - u32(line_clock) // u32(3))
        return
    at = REGISTER + register
    effect = EFFECT[register]
    value &= BITS[register]
    objects = OBJECTS[register]
    delay = DELAY[register]
    position = hides = i32(0)
    if effect == STORES:
        if s[at] == value:
            return
    elif effect == COLOUR:
        value |= s[COLOUR_LOSS]
        if s[at] == value:
            return
        if not s[PAINT]:
            s[at] = value
            return
    elif effect == PLAYFIELD_BITS:
        if s[at] == value:
            return
        delay = PLAYFIELD_DELAY[u32(line_clock) // u32(3) & u32(3)]
    elif effect == MOTION:
        if register == HMM0 and s[at] == 0x70 and value == 0x60 and clock == s[HMOVE_CLOCK] + STARS_CLOCKS:
            s[COSMIC_ARK] = 1
            s[COSMIC_ARK_STEP] = 0
        s[at] = value
        return
    elif effect == PLAYER_SIZE:
        if s[at] == value and not s[HIDDEN_COPY] | s[COSMIC_ARK_SHAPE]:
            return
    elif effect == GRAPHICS:
        objects = _objects_that_change(s, register, value)
        if objects == 0:
            _store_graphics(s, register, value)
            return
    elif effect == NOTHING:
        return
    elif RESP0 <= register <= RESBL:
        position = reset_position(register, line_clock, i32(clock - s[HMOVE_CLOCK]))
        if register <= RESP1:
            hides = hides_copy(s, register - RESP0, position)
            delay = 11 if hides > 0 else 0

    draw_until(s, screen, i32(clock + delay))
    s[REPEATED] = 0
    s[DIRTY] |= objects
    if effect == GRAPHICS:
        _store_graphics(s, register, value)
        return
    if effect == PLAYER_SIZE:
        s[HIDDEN_COPY] &= ~(1 << (register - NUSIZ0))
        if register == NUSIZ0:
            s[COSMIC_ARK_SHAPE] = 0
    elif RESP0 <= register <= RESBL:
        _move_to(s, register - RESP0, position, hides)
    elif effect == OTHER:
        _do_other(s, register, value, clock, line_clock)
    s[at] = value


@jit
def _objects_that_change(s, register, value):
    """Returns, as bits, the objects that look different after a write to GRP0, GRP1 or ENABL."""
    changed = s[REGISTER + register] != value
    if register == ENABL:
        return i32(changed and not s[REGISTER + VDELBL]) << BALL
    if register == GRP0:
        player0 = changed and not s[REGISTER + VDELP0]
        player1 = s[REGISTER + VDELP1] and s[OLD_GRP1] != s[REGISTER + GRP1]
        return i32(player0) << PLAYER0 | i32(player1) << PLAYER1
    player0 = s[REGISTER + VDELP0] and s[OLD_GRP0] != s[REGISTER + GRP0]
    player1 = changed and not s[REGISTER + VDELP1]
    ball = s[REGISTER + VDELBL] and s[OLD_ENABL] != s[REGISTER + ENABL]
    return i32(player0) << PLAYER0 | i32(player1) << PLAYER1 | i32(ball) << BALL


@jit
def _store_graphics(s, register, value):
    """Sets GRP0, GRP1 or ENABL. Writing one player's graphics copies the other's to its delayed register."""
    if register == GRP0:
        s[OLD_GRP1] = s[REGISTER + GRP1]
    elif register == GRP1:
        s[OLD_GRP0] = s[REGISTER + GRP0]
        s[OLD_ENABL] = s[REGISTER + ENABL]
    s[REGISTER + register] = value


@jit
def _move_to(s, item, position, hides):
    """Moves an object to the position that RESPx, RESMx or RESBL gives it."""
    s[POSITION + item] = position
    if item == MISSILE0:
        s[COSMIC_ARK_SHAPE] = 0
    elif item <= PLAYER1:
        hidden = i32(hides >= 0) << item
        s[HIDDEN_COPY] = s[HIDDEN_COPY] & ~(1 << item) | hidden


@jit
def _do_other(s, register, value, clock, line_clock):
    """Does the side effects of a write to a register."""
    if register == VSYNC:
        if value & 2:
            s[VSYNC_CLOCK] = i32(clock + CLOCKS_PER_LINE)
        elif clock >= s[VSYNC_CLOCK]:
            s[VSYNC_CLOCK] = _NEVER
            s[STOP] = 1
    elif register == VBLANK:
        if value & 0x80:
            s[PADDLES_DUMPED] = 1
        elif s[PADDLES_DUMPED]:
            s[PADDLES_DUMPED] = 0
            s[DUMP_END] = s[CYCLES]
    elif register == CTRLPF:
        if line_clock < RIGHT_HALF_CLOCK:  # later writes change the next line only
            s[REFLECT] = value & 1
    elif register in (RESMP0, RESMP1):
        player = register - RESMP0
        if s[REGISTER + register] and not value:
            middle = 4 * PIXEL_WIDTH[s[REGISTER + NUSIZ0 + player] & 7]
            s[POSITION + MISSILE0 + player] = (s[POSITION + player] + middle) % 160
    elif register == HMOVE:
        cycle = line_clock // 3
        if cycle <= 20 or cycle == 75:
            s[HMOVE_BLANK] = 1
        s[HMOVE_CLOCK] = clock
        s[HIDDEN_COPY] = s[COSMIC_ARK] = s[COSMIC_ARK_SHAPE] = 0
        move(s, cycle)
    elif register == HMCLR:
        for motion_register in range(HMP0, HMBL + 1):
            s[REGISTER + motion_register] = 0
    elif register == CXCLR:
        s[COLLISIONS] = 0
        s[COLLIDED] = 0


@jit
def tia_read(s, screen, address):
    """Reads a register at the time s[CYCLES]. Bits that the TIA does not drive keep the bus's last value."""
    register = address & 0x0F
    noise = s[DATA_BUS] & 0x3F
    if register < INPT0_READ or s[PAINT] == PAINT_EAGERLY:
        draw_until(s, screen, i32(3 * s[CYCLES] + s[LEFT_OVER]))
    if register < INPT0_READ:
        return i32((s[COLLISIONS] >> 2 * register & 3) << 6 | noise)
    if register < INPT4_READ:
        cycles = s[PADDLE + register - INPT0_READ]
        charged_at = i32(s[DUMP_END] + cycles)  # ale-py compares unsigned: a time in an earlier frame means never
        charged = cycles == 0 or (cycles > 0 and not s[PADDLES_DUMPED] and s[CYCLES] > charged_at >= 0)
        return i32(0x80 | noise if charged else noise)
    if register == INPT4_READ:
        return i32(s[INPT4] & 0x80 | noise)
    if register == INPT5_READ:
        return i32(s[INPT5] & 0x80 | noise)
    return i32(noise)
