"""Emulates the 6507: runs a program instruction by instruction.

An instruction is decoded by tables (opcodes.py) and goes through the same steps each time: fetch it; compute the
address of its operand; read it; do the operation; write the result. Its cycles have passed before it reads or writes.
"""

import numpy as np

from accel_rl.emulator import opcodes as op
from accel_rl.emulator.cartridges import cart_read, cart_write
from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.riot import riot_read, riot_write
from accel_rl.emulator.state import (
    CYCLES,
    DATA_BUS,
    INSTRUCTIONS,
    LAST_ACCESS_WAS_READ,
    PC,
    PLAIN_END,
    PLAIN_FIRST,
    RAM,
    SLICE,
    SP,
    STOP,
    A,
    B,
    C,
    D,
    I,
    N,
    V,
    X,
    Y,
    Z,
)
from accel_rl.emulator.tia import tia_read, tia_write

u32 = np.uint32
_DECODED = np.array(op.OPERATION << 8 | op.CYCLES << 4 | op.MODE, np.int32)
_LENGTH = op.LENGTH


@jit
def read_bus(s, rom, screen, address, bus):
    """Reads a byte anywhere; bus: the byte that was on the data bus before."""
    if address & 0x1000:
        return i32(cart_read(s, rom, address))
    if address & 0x280 == 0x80:
        return s[RAM + (address & 0x7F)]
    s[DATA_BUS] = bus
    if address & 0x80:
        return i32(riot_read(s, address))
    return i32(tia_read(s, screen, address))


@jit
def write_bus(s, rom, screen, address, value):
    """Writes a byte anywhere."""
    if address & 0x1000:
        cart_write(s, rom, address, value)
    elif address & 0x80:
        riot_write(s, address, value)
    else:
        tia_write(s, screen, address & 0x3F, value)


@jit
def push(s, rom, screen, value, count):
    """Pushes that many bytes of a number, the highest first, on the stack: RAM and, below 0x180, the TIA."""
    while count > 0:
        count = i32(count - 1)
        byte = i32(value >> (8 * count) & 0xFF)
        write_bus(s, rom, screen, i32(0x100 | s[SP]), byte)
        s[SP] = (s[SP] - 1) & 0xFF
        s[LAST_ACCESS_WAS_READ] = 0


@jit
def pull(s, rom, screen, count):
    """Pulls that many bytes from the stack; returns them as a number, the first one highest."""
    byte = read_bus(s, rom, screen, i32(0x100 | s[SP]), i32(0))  # the processor reads once while it increments SP
    value = i32(0)
    while count > 0:
        count = i32(count - 1)
        s[SP] = (s[SP] + 1) & 0xFF
        byte = read_bus(s, rom, screen, i32(0x100 | s[SP]), byte)
        value = i32(value << 8 | byte)
    return value


@jit
def run(s, rom, screen, max_instructions):
    """Runs a program until the frame has ended (s[STOP] is set) or so many instructions are executed."""
    if s[STOP]:
        return
    a, x, y, pc = s[A], s[X], s[Y], s[PC]
    carry, overflow = s[C], s[V]
    result = i32(s[N] << 8 | (1 - s[Z]))  # N is bit 7 or 8 of it, Z says that the lower eight are 0
    cycles = s[CYCLES]
    plain_first, plain_size = s[PLAIN_FIRST], u32(max(s[PLAIN_END] - s[PLAIN_FIRST] - 2, 0))
    instructions_left = i32(max_instructions)
    stopped = i32(0)
    while instructions_left > 0 and not stopped:
        instructions_left = i32(instructions_left - 1)

        # Fetch. Where reading has no consequence, three bytes at once.
        offset = i32(pc & 0xFFF)
        if pc & 0x1000 and u32(offset - plain_first) < plain_size and offset & 0x3FF < 0x3FE:
            at = u32(s[SLICE + (offset >> 10)] + (offset & 0x3FF))
            opcode, low, high = i32(rom[at]), i32(rom[at + u32(1)]), i32(rom[at + u32(2)])
            length = _LENGTH[opcode]
        else:
            s[CYCLES] = cycles
            opcode = read_bus(s, rom, screen, pc, i32(0))
            length = _LENGTH[opcode]
            low = read_bus(s, rom, screen, i32((pc + 1) & 0xFFFF), opcode) if length > 1 else i32(0)
            high = read_bus(s, rom, screen, i32((pc + 2) & 0xFFFF), low) if length > 2 else i32(0)
        pc = i32((pc + length) & 0xFFFF)
        decoded = _DECODED[opcode]
        cycles = i32(cycles + (decoded >> 4 & 15))
        mode = decoded & 15
        operation = decoded >> 8
        bus = low

        # The operand's address, or its value where it has none
        address = i32(-1)
        value = low
        if mode == op.IMPLIED:
            value = a
        elif mode == op.ZERO:
            address = low
        elif mode == op.ZERO_X:
            address = i32((low + x) & 0xFF)
        elif mode == op.ZERO_Y:
            address = i32((low + y) & 0xFF)
        elif mode == op.ABSOLUTE:
            address = i32(low | high << 8)
            bus = high
        elif mode == op.ABSOLUTE_X:
            address = i32((low + (high << 8) + x) & 0xFFFF)
            bus = high
            if low + x > 0xFF and operation < op.FIRST_WRITE:
                cycles = i32(cycles + 1)
        elif mode == op.ABSOLUTE_Y:
            address = i32((low + (high << 8) + y) & 0xFFFF)
            bus = high
            if low + y > 0xFF and operation < op.FIRST_WRITE:
                cycles = i32(cycles + 1)
        elif mode == op.INDIRECT_X or mode == op.INDIRECT_Y:
            pointer = i32((low + x) & 0xFF) if mode == op.INDIRECT_X else low
            if pointer >= 0x80 and pointer < 0xFF:
                low = s[RAM + (pointer & 0x7F)]
                high = s[RAM + ((pointer + 1) & 0x7F)]
            else:
                s[CYCLES] = cycles
                low = read_bus(s, rom, screen, pointer, low)
                high = read_bus(s, rom, screen, i32((pointer + 1) & 0xFF), low)
            bus = high
            address = i32(low | high << 8)
            if mode == op.INDIRECT_Y:
                address = i32((address + y) & 0xFFFF)
                if low + y > 0xFF and operation < op.FIRST_WRITE:
                    cycles = i32(cycles + 1)

        # Read
        if address >= 0 and (operation < op.FIRST_WRITE or operation >= op.FIRST_MODIFY):
            offset = i32(address & 0xFFF)
            if address & 0x1280 == 0x80:
                value = s[RAM + (address & 0x7F)]
            elif address & 0x1000 and u32(offset - plain_first) < plain_size:
                value = i32(rom[u32(s[SLICE + (offset >> 10)] + (offset & 0x3FF))])
            else:
                s[CYCLES] = cycles
                value = read_bus(s, rom, screen, address, bus)

        # The operation
        if operation == op.LDA:
            a = result = value
        elif operation == op.LDX:
            x = result = value
        elif operation == op.LDY:
            y = result = value
        elif operation == op.STA:
            value = a
        elif operation == op.STX:
            value = x
        elif operation == op.STY:
            value = y
        elif operation == op.AND:
            a = result = i32(a & value)
        elif operation == op.ORA:
            a = result = i32(a | value)
        elif operation == op.EOR:
            a = result = i32(a ^ value)
        elif operation == op.BIT:
            overflow = i32(value >> 6 & 1)
            result = i32((a & value) | (value & 0x80) << 1)
        elif operation == op.CMP or operation == op.CPX or operation == op.CPY:
            register = a if operation == op.CMP else (x if operation == op.CPX else y)
            carry = i32(register >= value)
            result = i32((register - value) & 0xFF)
        elif operation == op.ADC:
            a, carry, overflow = _add(a, value, carry, s[D])
            result = a
        elif operation == op.SBC:
            a, carry, overflow = _subtract(a, value, carry, s[D])
            result = a
        elif operation == op.INC or operation == op.ISB:
            value = result = i32((value + 1) & 0xFF)
            if operation == op.ISB:
                a, carry, overflow = _subtract(a, value, carry, s[D])
                result = a
        elif operation == op.DEC or operation == op.DCP:
            value = result = i32((value - 1) & 0xFF)
            if operation == op.DCP:
                carry = i32(a >= value)
                result = i32((a - value) & 0xFF)
        elif operation == op.ASL or operation == op.SLO:
            carry = i32(value >> 7)
            value = result = i32(value << 1 & 0xFF)
            if operation == op.SLO:
                a = result = i32(a | value)
        elif operation == op.LSR or operation == op.SRE:
            carry = i32(value & 1)
            value = result = i32(value >> 1)
            if operation == op.SRE:
                a = result = i32(a ^ value)
        elif operation == op.ROL or operation == op.RLA:
            shifted = i32(value << 1 | carry)
            carry = i32(shifted >> 8)
            value = result = i32(shifted & 0xFF)
            if operation == op.RLA:
                a = result = i32(a & value)
        elif operation == op.ROR or operation == op.RRA:
            shifted = i32(value | carry << 8)
            carry = i32(value & 1)
            value = result = i32(shifted >> 1)
            if operation == op.RRA:
                a, carry, overflow = _add(a, value, carry, s[D])
                result = a
        elif operation >= op.BPL and operation <= op.BEQ:
            negative = result & 0x180 != 0
            if operation == op.BPL:
                taken = not negative
            elif operation == op.BMI:
                taken = negative
            elif operation == op.BVC:
                taken = overflow == 0
            elif operation == op.BVS:
                taken = overflow != 0
            elif operation == op.BCC:
                taken = carry == 0
            elif operation == op.BCS:
                taken = carry != 0
            elif operation == op.BNE:
                taken = result & 0xFF != 0
            else:
                taken = result & 0xFF == 0
            if taken:
                target = i32((pc + (low ^ 0x80) - 0x80) & 0xFFFF)
                cycles = i32(cycles + (1 if (target ^ pc) & 0xFF00 == 0 else 2))
                pc = target
        elif operation == op.JMP:
            target = i32(low | high << 8)
            if mode == op.JUMP_INDIRECT:
                s[CYCLES] = cycles
                low = read_bus(s, rom, screen, target, high)
                high = read_bus(s, rom, screen, i32(target & 0xFF00 | (target + 1) & 0xFF), low)
                target = i32(low | high << 8)
            pc = target
        elif operation == op.INX:
            x = result = i32((x + 1) & 0xFF)
        elif operation == op.DEX:
            x = result = i32((x - 1) & 0xFF)
        elif operation == op.INY:
            y = result = i32((y + 1) & 0xFF)
        elif operation == op.DEY:
            y = result = i32((y - 1) & 0xFF)
        elif operation == op.TAX:
            x = result = a
        elif operation == op.TAY:
            y = result = a
        elif operation == op.TXA:
            a = result = x
        elif operation == op.TYA:
            a = result = y
        elif operation == op.TSX:
            x = result = s[SP]
        elif operation == op.TXS:
            s[SP] = x
        elif operation == op.CLC:
            carry = i32(0)
        elif operation == op.SEC:
            carry = i32(1)
        elif operation == op.CLV:
            overflow = i32(0)
        elif operation == op.CLD:
            s[D] = 0
        elif operation == op.SED:
            s[D] = 1
        elif operation == op.CLI:
            s[I] = 0
        elif operation == op.SEI:
            s[I] = 1
        elif operation == op.LAX:
            a = x = result = value
        elif operation == op.LAS:
            a = x = result = i32(value & s[SP])
            s[SP] = a
        elif operation == op.ANC:
            a = result = i32(a & value)
            carry = i32(a >> 7)
        elif operation == op.ALR:
            carry = i32(a & value & 1)
            a = result = i32((a & value) >> 1)
        elif operation == op.ARR:
            both = i32(a & value)
            a = result = i32(both >> 1 | carry << 7)
            carry = i32(a >> 6 & 1)
            overflow = i32((a >> 6 ^ a >> 5) & 1)
            if s[D]:
                carry = i32((both & 0xF0) + (both & 0x10) > 0x50)
                if (both & 15) + (both & 1) > 5:
                    a = i32(a & 0xF0 | (a + 6) & 15)
                a = i32((a + 0x60 * carry) & 0xFF)
        elif operation == op.ANE:
            a = result = i32((a | 0xEE) & x & value)
        elif operation == op.LXA:
            a = x = result = i32((a | 0xEE) & value)
        elif operation == op.SBX:
            carry = i32((a & x) >= value)
            x = result = i32(((a & x) - value) & 0xFF)
        elif operation == op.SAX:
            value = i32(a & x)
        elif operation == op.SHA:
            value = i32(a & x & ((address >> 8) + 1))
        elif operation == op.SHX:
            value = i32(x & ((address >> 8) + 1))
        elif operation == op.SHY:
            value = i32(y & ((address >> 8) + 1))
        elif operation == op.SHS:
            s[SP] = i32(a & x)
            value = i32(a & x & ((address >> 8) + 1))
        elif operation == op.NOP:
            pass
        elif operation == op.JAM:
            s[STOP] = 2
            stopped = i32(1)
        elif operation >= op.JSR and operation <= op.PLP:  # the stack
            s[CYCLES] = cycles
            flags = i32(0x20 | s[B] << 4 | s[D] << 3 | s[I] << 2 | carry | overflow << 6)
            flags |= i32((result & 0x180 != 0) << 7 | (result & 0xFF == 0) << 1)
            if operation == op.JSR:
                push(s, rom, screen, pc, i32(2))
                pc = i32(low | read_bus(s, rom, screen, pc, i32(0)) << 8)
            elif operation == op.BRK:
                s[B] = 1
                push(s, rom, screen, i32(pc << 8 | flags | 0x10), i32(3))
                s[I] = 1
                low = read_bus(s, rom, screen, i32(0xFFFE), i32(0))
                pc = i32(low | read_bus(s, rom, screen, i32(0xFFFF), low) << 8)
            elif operation == op.PHA or operation == op.PHP:
                push(s, rom, screen, a if operation == op.PHA else flags, i32(1))
            else:
                count = i32(1 + (operation == op.RTS) + 2 * (operation == op.RTI))
                pulled = pull(s, rom, screen, count)
                if operation == op.PLA:
                    a = result = pulled
                else:
                    if operation == op.RTS or operation == op.RTI:
                        pc = i32(pulled >> 8 & 0xFF | (pulled & 0xFF) << 8)
                    if operation == op.RTS:
                        read_bus(s, rom, screen, pc, i32(0))
                        pc = i32((pc + 1) & 0xFFFF)
                    else:
                        flags = i32(pulled >> 16 if operation == op.RTI else pulled)
                        carry = i32(flags & 1)
                        overflow = i32(flags >> 6 & 1)
                        s[B], s[D], s[I] = 1, flags >> 3 & 1, flags >> 2 & 1
                        result = i32((flags & 0x80) << 1 | (flags >> 1 & 1 ^ 1))
            s[LAST_ACCESS_WAS_READ] = 1
            cycles = s[CYCLES]
            stopped = s[STOP]

        # Write
        if operation >= op.FIRST_WRITE and operation < op.FIRST_OTHER:
            if mode == op.IMPLIED:
                a = value
            elif address & 0x1280 == 0x80:
                s[RAM + (address & 0x7F)] = value
            else:
                s[CYCLES] = cycles
                write_bus(s, rom, screen, address, value)
                cycles = s[CYCLES]
                stopped = s[STOP]

    s[A], s[X], s[Y], s[PC] = a, x, y, pc
    s[C], s[V] = carry, overflow
    s[N] = result >> 8 | result >> 7 & 1
    s[Z] = result & 0xFF == 0
    s[CYCLES] = cycles
    s[INSTRUCTIONS] += i32(max_instructions - instructions_left)


@jit
def _add(a, value, carry, decimal):
    """Returns the sum of two bytes and the carry, and the flags C and V of it."""
    total = i32(a + value + carry)
    carry_out = i32(total >> 8)
    if decimal:
        total = i32(_from_decimal(a) + _from_decimal(value) + carry)
        carry_out = i32(total > 99)
        total = _to_decimal(i32(total & 0xFF))
    overflow = i32((a ^ total) & (value ^ total) & 0x80) >> 7
    return i32(total & 0xFF), carry_out, i32(overflow)


@jit
def _subtract(a, value, carry, decimal):
    """Returns the difference of two bytes and the borrow, and the flags C and V of it."""
    if not decimal:
        return _add(a, i32(value ^ 0xFF), carry, i32(0))
    difference = i32(_from_decimal(a) - _from_decimal(value) - 1 + carry)
    if difference < 0:
        difference = i32(difference + 100)
    # What ale-py finds in its tables: behind the borrow of a hundred, digits above 9 give the values of a decimal byte.
    total = _to_decimal(difference) if difference >= 0 else _from_decimal(i32(difference & 0xFF))
    overflow = i32((a ^ total) & (value ^ total) & 0x80) >> 7
    return total, i32(a >= value + 1 - carry), i32(overflow)


@jit
def _from_decimal(byte):
    """Returns the number that two decimal digits write; digits above 9 count as they are."""
    return i32(10 * (byte >> 4) + (byte & 15))


@jit
def _to_decimal(number):
    """Returns the last two decimal digits of a number."""
    rest = i32(number % i32(100))
    return i32(rest // i32(10) << 4 | rest % i32(10))
