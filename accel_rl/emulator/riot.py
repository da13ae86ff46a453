"""Emulates the RIOT (MOS 6532): 128 bytes of RAM, the interval timer, the ports of the panel and the joysticks.

Addresses are those of the Stella Programmer's Guide: RAM 0x80, SWCHA 0x280, TIM1T 0x294 and their mirrors.
"""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import (
    CYCLES,
    DDRA,
    RAM,
    SWCHA,
    SWCHB,
    TIMER,
    TIMER_INTERRUPT_CYCLE,
    TIMER_READ_AFTER_INTERRUPT,
    TIMER_SET_CYCLE,
    TIMER_SHIFT,
)

INTIM = 0x284
POLL_CYCLES = 7  # duration of the loop LDA INTIM, BNE


@jit
def reset_riot(s, timer):
    """Powers the RIOT on, with the timer set to a number of units of 64 cycles; RAM does not change."""
    s[TIMER] = timer
    s[TIMER_SHIFT] = 6
    s[TIMER_SET_CYCLE] = 0
    s[TIMER_INTERRUPT_CYCLE] = 0
    s[TIMER_READ_AFTER_INTERRUPT] = 0
    s[DDRA] = 0


@jit
def riot_read(s, address):
    """Reads RAM, a port or the timer at the time s[CYCLES]."""
    if address & 0x200 == 0:
        return s[RAM + (address & 0x7F)]
    register = address & 7
    if register == 0 or register == 2:  # SWCHA, SWCHB
        return s[SWCHA] if register == 0 else s[SWCHB]
    if register == 1:  # SWACNT
        return s[DDRA]
    if register == 3:
        return i32(0)
    elapsed = i32(s[CYCLES] - 1 - s[TIMER_SET_CYCLE])
    units = i32(s[TIMER] - (elapsed >> s[TIMER_SHIFT]) - 1)
    if register & 1:  # INSTAT
        return i32(0) if units >= 0 or s[TIMER_READ_AFTER_INTERRUPT] else i32(0x80)
    if units >= 0:  # INTIM
        return units
    return _read_expired_timer(s, elapsed)


@jit
def _read_expired_timer(s, elapsed):
    """Reads INTIM after it has passed 0. It then counts cycles, and units again after the first read."""
    cycles_left = i32((s[TIMER] << s[TIMER_SHIFT]) - elapsed - 1)
    if cycles_left <= -2 and not s[TIMER_READ_AFTER_INTERRUPT]:
        s[TIMER_READ_AFTER_INTERRUPT] = 1
        s[TIMER_INTERRUPT_CYCLE] = s[CYCLES]
    if not s[TIMER_READ_AFTER_INTERRUPT]:
        return i32(cycles_left & 0xFF)
    late = i32(s[TIMER_INTERRUPT_CYCLE] - s[TIMER_SET_CYCLE] - (s[TIMER] << s[TIMER_SHIFT]))
    return i32((s[TIMER] - (elapsed >> s[TIMER_SHIFT]) - late) & 0xFF)


@jit
def polls_to_come(s, branch):
    """Returns how many more times a loop that waits for the timer (by BNE or BPL) will branch back.

    The loop reads INTIM now, at the time s[CYCLES], and then every POLL_CYCLES."""
    elapsed = i32(s[CYCLES] - 1 - s[TIMER_SET_CYCLE])
    value = i32(s[TIMER] - (elapsed >> s[TIMER_SHIFT]) - 1)
    last = i32(0)  # the value that ends the loop
    if branch == 0xD0 and value > 0:
        last = i32(1)
    elif branch != 0x10 or value < 0 or value > 127:
        return i32(0)
    until_end = i32((s[TIMER] - last << s[TIMER_SHIFT]) - elapsed)
    return i32((until_end + POLL_CYCLES - 1) // i32(POLL_CYCLES))


@jit
def riot_write(s, address, value):
    """Writes RAM, a port's direction or the timer at the time s[CYCLES]."""
    if address & 0x200 == 0:
        s[RAM + (address & 0x7F)] = value
    elif address & 0x14 == 0x14:  # TIM1T, TIM8T, TIM64T, T1024T
        s[TIMER] = value
        s[TIMER_SHIFT] = i32((address & 3) * 3 + ((address & 3) == 3))
        s[TIMER_SET_CYCLE] = s[CYCLES]
        s[TIMER_READ_AFTER_INTERRUPT] = 0
    elif address & 7 == 1:  # SWACNT
        s[DDRA] = value
