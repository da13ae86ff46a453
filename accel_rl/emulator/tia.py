"""Emulates the TIA's registers: frames, WSYNC, players, missiles, ball, playfield, collisions, inputs.

Names and addresses of the registers are those of the Stella Programmer's Guide (Steve Wright, 1979). Pictures and
collisions are completed up to the present only when a register changes, when a collision is read, and at the end.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.objects import (
    ALL_OBJECTS,
    BALL,
    CTRLPF,
    ENABL,
    ENAM0,
    GRP0,
    MISSILE0,
    MISSILE1,
    NUSIZ0,
    PF0,
    PF1,
    PF2,
    PIXEL_WIDTH,
    PLAYER0,
    PLAYER1,
    PLAYFIELD,
    REFP0,
    RESMP0,
    VDELBL,
    VDELP0,
    hides_copy,
    move,
)
from accel_rl.emulator.picture import (
    BLANK_CLOCKS,
    CLOCKS_PER_LINE,
    COLUBK,
    COLUP0,
    VBLANK,
    draw_until,
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
    MAX_LINE,
    MUSIC_CYCLE,
    OLD_ENABL,
    OLD_GRP0,
    OLD_GRP1,
    PADDLE,
    PADDLES_DUMPED,
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

VSYNC, WSYNC, RSYNC = 0x00, 0x02, 0x03
REFP1, RESP0, RESP1, RESM0, RESM1, RESBL = 0x0C, 0x10, 0x11, 0x12, 0x13, 0x14
GRP1, HMP0, HMM0, HMBL, VDELP1, RESMP1, HMOVE, HMCLR, CXCLR = 0x1C, 0x20, 0x22, 0x24, 0x26, 0x29, 0x2A, 0x2B, 0x2C
NUM_REGISTERS = 0x2D
INPT0_READ, INPT4_READ, INPT5_READ = 0x08, 0x0C, 0x0D
STARS_CLOCKS = 63  # after HMOVE: the time for HMM0 to change that starts Cosmic Ark's stars
RIGHT_HALF_CLOCK = BLANK_CLOCKS + 79
_NEVER = 2**31 - 1

# How many clocks after a write its effect is seen; which objects' masks depend on the register; which registers do
# nothing when the value that they have is written again.
DELAY = np.zeros(64, np.int32)
DELAY[[VBLANK, REFP0, REFP1]] = 1
DELAY[[GRP0, GRP1]] = 1
DELAY[[NUSIZ0, NUSIZ0 + 1, RESM0, RESM0 + 1]] = 8
PLAYFIELD_DELAY = np.array([4, 5, 2, 3], np.int32)  # by the cycle of the write, modulo 4
OBJECTS = np.zeros(64, np.int32)
OBJECTS[NUSIZ0] = 1 << PLAYER0 | 1 << MISSILE0
OBJECTS[NUSIZ0 + 1] = 1 << PLAYER1 | 1 << MISSILE1
OBJECTS[CTRLPF] = 1 << BALL | 1 << PLAYFIELD
OBJECTS[[REFP0, GRP0, VDELP0]] = 1 << PLAYER0
OBJECTS[[REFP1, GRP1, VDELP1]] = 1 << PLAYER1
OBJECTS[[PF0, PF1, PF2]] = 1 << PLAYFIELD
OBJECTS[[ENAM0, RESMP0]] = 1 << MISSILE0
OBJECTS[[ENAM0 + 1, RESMP1]] = 1 << MISSILE1
OBJECTS[[ENABL, VDELBL]] = 1 << BALL
PLAIN = OBJECTS != 0
PLAIN[[NUSIZ0, NUSIZ0 + 1, GRP0, GRP1]] = False
PLAIN[COLUP0 : COLUBK + 1] = True

# Resets shortly after HMOVE that place their object elsewhere: register, clocks since HMOVE, clock of the line, position.
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


@jit
def reset_tia(s):
    """Switches the TIA on: all registers are 0."""
    for word in range(VSYNC_CLOCK, COLLIDED + 1):
        s[word] = 0
    s[LEFT_OVER] = 0
    s[VSYNC_CLOCK] = _NEVER
    s[DIRTY] = ALL_OBJECTS


@jit
def start_frame(s):
    """Begins a frame: time starts at 0 again, with the clocks of the line that the last frame did not use up."""
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
    """Writes a register at the time s[CYCLES]; sets s[STOP] when that ends the frame."""
    register &= 0x3F
    clock = i32(3 * s[CYCLES] + s[LEFT_OVER])
    if clock >= CLOCKS_PER_LINE * (s[MAX_LINE] + 1):
        s[STOP] = 1
    at = i32(REGISTER + register)
    if register == WSYNC:
        if s[LAST_ACCESS_WAS_READ] and clock % CLOCKS_PER_LINE:
            s[CYCLES] += i32(76 - clock % CLOCKS_PER_LINE // 3)
        return
    if COLUP0 <= register <= COLUBK:
        value = value & 0xFE | s[COLOUR_LOSS]
    if (PLAIN[register] and s[at] == value) or register >= NUM_REGISTERS:
        return
    if register == GRP0:
        if s[at] == value and s[OLD_GRP1] == s[REGISTER + GRP1]:
            return
    elif register == GRP1:
        if s[at] == value and s[OLD_GRP0] == s[REGISTER + GRP0] and s[OLD_ENABL] == s[REGISTER + ENABL] & 2:
            return
    elif NUSIZ0 <= register <= NUSIZ0 + 1:
        if s[at] == value and not s[HIDDEN_COPY] | s[COSMIC_ARK_SHAPE]:
            return
    elif HMP0 <= register <= HMBL:
        if register == HMM0 and s[at] >> 4 == 7 and value >> 4 == 6 and clock == s[HMOVE_CLOCK] + STARS_CLOCKS:
            s[COSMIC_ARK] = 1
            s[COSMIC_ARK_STEP] = 0
        s[at] = value
        return

    line_clock = clock % CLOCKS_PER_LINE
    delay = DELAY[register]
    hides = position = i32(0)
    if PF0 <= register <= PF2:
        delay = PLAYFIELD_DELAY[line_clock // 3 & 3]
    elif RESP0 <= register <= RESBL:
        position = _reset_position(register, line_clock, i32(clock - s[HMOVE_CLOCK]))
        if register <= RESP1:
            hides = hides_copy(s, register - RESP0, position)
            delay = 11 if hides > 0 else 0
    draw_until(s, screen, i32(clock + delay))

    s[REPEATED] = 0
    s[DIRTY] |= OBJECTS[register]
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
        if line_clock < RIGHT_HALF_CLOCK:  # later the next line is the first to be reflected or not
            s[REFLECT] = value & 1
    elif NUSIZ0 <= register <= NUSIZ0 + 1:
        s[HIDDEN_COPY] &= ~(1 << (register - NUSIZ0))
        if register == NUSIZ0:
            s[COSMIC_ARK_SHAPE] = 0
    elif register == GRP0:
        s[OLD_GRP1] = s[REGISTER + GRP1]
        s[DIRTY] |= 1 << PLAYER1
    elif register == GRP1:
        s[OLD_GRP0] = s[REGISTER + GRP0]
        s[OLD_ENABL] = s[REGISTER + ENABL] & 2
        s[DIRTY] |= 1 << PLAYER0 | 1 << BALL
    elif RESP0 <= register <= RESBL:
        item = register - RESP0
        s[POSITION + item] = position
        s[DIRTY] |= i32(1 << item)
        if register == RESM0:
            s[COSMIC_ARK_SHAPE] = 0
        elif register <= RESP1:
            s[HIDDEN_COPY] &= ~(1 << item)
            if hides >= 0:
                s[HIDDEN_COPY] |= 1 << item
    elif register == RESMP0 or register == RESMP1:
        player = register - RESMP0
        if s[at] & 2 and not value & 2:
            s[POSITION + MISSILE0 + player] = (
                s[POSITION + player] + 4 * PIXEL_WIDTH[s[REGISTER + NUSIZ0 + player] & 7]
            ) % 160
    elif register == HMOVE:
        cycle = line_clock // 3
        if cycle <= 20 or cycle == 75:
            s[HMOVE_BLANK] = 1
        s[HMOVE_CLOCK] = clock
        s[HIDDEN_COPY] = s[COSMIC_ARK] = s[COSMIC_ARK_SHAPE] = 0
        s[DIRTY] |= 1 << PLAYER0 | 1 << PLAYER1 | 1 << MISSILE0
        move(s, cycle)
    elif register == HMCLR:
        for motion_register in range(HMP0, HMBL + 1):
            s[REGISTER + motion_register] = 0
    elif register == CXCLR:
        s[COLLISIONS] = 0
        s[COLLIDED] = 0
    s[at] = value


@jit
def _reset_position(register, line_clock, since_hmove):
    """Returns where RESPx, RESMx or RESBL, written at this clock of a line, puts its object."""
    for i in range(len(LATE_RESETS)):
        special = LATE_RESETS[i]
        if special[0] == register and special[1] == since_hmove and special[2] == line_clock:
            return special[3]
    delay = 5 if register <= RESP1 else 4
    if line_clock <= BLANK_CLOCKS:
        return i32(delay - 2)
    return i32((line_clock - BLANK_CLOCKS + delay) % 160)


@jit
def tia_read(s, screen, address):
    """Reads a register at the time s[CYCLES]; the bits that the TIA does not drive stay as the bus had them."""
    register = address & 0x0F
    noise = s[DATA_BUS] & 0x3F
    if register < INPT0_READ:
        draw_until(s, screen, i32(3 * s[CYCLES] + s[LEFT_OVER]))
        return i32((s[COLLISIONS] >> 2 * register & 3) << 6 | noise)
    if register < INPT4_READ:
        cycles = s[PADDLE + register - INPT0_READ]
        charged = cycles == 0 or (cycles > 0 and not s[PADDLES_DUMPED] and s[CYCLES] > s[DUMP_END] + cycles)
        return i32(0x80 | noise if charged else noise)
    if register == INPT4_READ:
        return i32(s[INPT4] & 0x80 | noise)
    if register == INPT5_READ:
        return i32(s[INPT5] & 0x80 | noise)
    return i32(noise)
