"""Emulates the TIA's registers: frames, WSYNC, players, missiles, ball, playfield, collisions, inputs.

Names and addresses of the registers are those of the Stella Programmer's Guide (Steve Wright, 1979).
"""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import (
    CYCLES,
    DATA_BUS,
    FRAME_BUFFER,
    INPT4,
    INPT5,
    LAST_ACCESS_WAS_READ,
    LEFT_OVER,
    MAX_LINE,
    REGISTER,
    STOP,
    TIMER_INTERRUPT_CYCLE,
    TIMER_SET_CYCLE,
    VSYNC_CLOCK,
)

CLOCKS_PER_LINE = 228
_NEVER = 2**31 - 1


@jit
def reset_tia(s):
    """Switches the TIA on: all registers are 0."""
    for register in range(64):
        s[REGISTER + register] = 0
    s[LEFT_OVER] = 0
    s[VSYNC_CLOCK] = _NEVER


@jit
def start_frame(s):
    """Begins a frame: time starts at 0 again, with the clocks of the line that the last frame did not use up."""
    cycles = s[CYCLES]
    clock = i32(3 * cycles + s[LEFT_OVER])
    s[LEFT_OVER] = clock % CLOCKS_PER_LINE
    if s[VSYNC_CLOCK] != _NEVER:
        s[VSYNC_CLOCK] += i32(s[LEFT_OVER] - clock)
    s[TIMER_SET_CYCLE] -= cycles
    s[TIMER_INTERRUPT_CYCLE] -= cycles
    s[CYCLES] = 0
    s[STOP] = 0
    s[FRAME_BUFFER] ^= 1


@jit
def end_frame(s, screen):
    """Finishes the picture of the frame that has ended."""


@jit
def tia_write(s, screen, register, value):
    """Writes a register at the time s[CYCLES]; sets s[STOP] when that ends the frame."""
    register &= 0x3F
    clock = i32(3 * s[CYCLES] + s[LEFT_OVER])
    if clock >= CLOCKS_PER_LINE * (s[MAX_LINE] + 1):
        s[STOP] = 1
    if register == 0x00:  # VSYNC
        s[REGISTER] = value
        if value & 2:
            s[VSYNC_CLOCK] = i32(clock + CLOCKS_PER_LINE)
        elif clock >= s[VSYNC_CLOCK]:
            s[VSYNC_CLOCK] = _NEVER
            s[STOP] = 1
    elif register == 0x02:  # WSYNC
        if s[LAST_ACCESS_WAS_READ] and clock % CLOCKS_PER_LINE:
            s[CYCLES] += i32(76 - clock % CLOCKS_PER_LINE // 3)
    else:
        s[i32(REGISTER + register)] = value


@jit
def tia_read(s, screen, address):
    """Reads a register at the time s[CYCLES]; the bits that the TIA does not drive stay as the bus had them."""
    register = address & 0x0F
    noise = s[DATA_BUS] & 0x3F
    if register == 0x0C:
        return i32(s[INPT4] & 0x80 | noise)
    if register == 0x0D:
        return i32(s[INPT5] & 0x80 | noise)
    return i32(noise)
