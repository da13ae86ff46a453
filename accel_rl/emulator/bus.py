"""Connects the 6507 with the other chips. Address bit 12 selects the cartridge; else bit 7 selects RIOT or TIA."""

import numpy as np

from accel_rl.emulator.cartridges import KIND_E0, cart_read, cart_write
from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.riot import riot_read, riot_write
from accel_rl.emulator.state import (
    CARTRIDGE,
    CYCLES,
    DATA_BUS,
    LAST_ACCESS_WAS_READ,
    PLAIN_END,
    PLAIN_FIRST,
    RAM,
    SLICE,
    SP,
)
from accel_rl.emulator.tia import tia_read, tia_write

u32 = np.uint32


@jit
def is_plain(s, address):
    """Returns whether a read from the cartridge has no side effect."""
    return s[PLAIN_FIRST] <= address & 0xFFF < s[PLAIN_END]


@jit
def read_bus(s, rom, screen, address, bus):
    """Reads a byte at any address; bus: the byte that was on the data bus before."""
    if address & 0x1000:
        if is_plain(s, address):
            return i32(rom[u32(s[SLICE + (address >> 10 & 3)] + (address & 0x3FF))])
        return i32(cart_read(s, rom, address))
    if address & 0x280 == 0x80:
        return s[RAM + (address & 0x7F)]
    s[DATA_BUS] = bus
    if address & 0x80:
        return i32(riot_read(s, address))
    return i32(tia_read(s, screen, address))


@jit
def write_bus(s, rom, screen, address, value):
    """Writes a byte to any address."""
    if address & 0x1000:
        cart_write(s, rom, address, value)
    elif address & 0x80:
        riot_write(s, address, value)
    else:
        tia_write(s, screen, i32(address & 0x3F), value)


@jit
def read_zero(s, screen, address, cycles, bus):
    """Reads a byte of page zero (RAM or the TIA) at the time `cycles`, instead of s[CYCLES]."""
    if address & 0x80:
        return s[RAM + (address & 0x7F)]
    s[CYCLES] = cycles
    s[DATA_BUS] = bus
    return i32(tia_read(s, screen, address))


@jit
def read_pointer(s, screen, address, cycles, bus):
    """Reads a two-byte address from page zero; returns its low and its high byte."""
    low = read_zero(s, screen, address, cycles, bus)
    return low, read_zero(s, screen, i32((address + 1) & 0xFF), cycles, low)


@jit
def push(s, rom, screen, value, count):
    """Pushes the given number of bytes, the highest first, on the stack: RAM and, below 0x180, the TIA."""
    while count > 0:
        count = i32(count - 1)
        byte = i32(value >> (8 * count) & 0xFF)
        write_bus(s, rom, screen, i32(0x100 | s[SP]), byte)
        s[SP] = (s[SP] - 1) & 0xFF
        s[LAST_ACCESS_WAS_READ] = 0


@jit
def pull(s, rom, screen, count):
    """Pulls the given number of bytes from the stack; returns them as one number, the first byte highest."""
    byte = read_bus(s, rom, screen, i32(0x100 | s[SP]), i32(0))  # the processor reads once as it increments SP
    value = i32(0)
    while count > 0:
        count = i32(count - 1)
        s[SP] = (s[SP] + 1) & 0xFF
        byte = read_bus(s, rom, screen, i32(0x100 | s[SP]), byte)
        value = i32(value << 8 | byte)
    return value


@jit
def plain_window(s, address):
    """Returns the range around a cartridge address where reads have no side effect: its first address (13 bits), the
    number of addresses from which three bytes can be read, and the offset from an address to the ROM."""
    place = i32(address & 0x1FFF)
    slot = i32(place >> 10 & 3)
    first, end = i32(0x1000 + s[PLAIN_FIRST]), i32(0x1000 + s[PLAIN_END])
    if s[CARTRIDGE] == KIND_E0:
        first, end = max(first, i32(0x1000 + 0x400 * slot)), min(end, i32(0x1400 + 0x400 * slot))
    if place < first or place >= end - 2:
        return i32(0), u32(0), i32(0)
    return first, u32(end - 2 - first), i32(s[SLICE + slot] - 0x1000 - 0x400 * slot)


@jit
def branch(pc, distance, cycles):
    """Returns the target of a branch and its arrival time: one cycle later, two on another page."""
    target = i32((pc + (distance ^ 0x80) - 0x80) & 0xFFFF)
    return target, i32(cycles + (1 if (target ^ pc) & 0xFF00 == 0 else 2))
