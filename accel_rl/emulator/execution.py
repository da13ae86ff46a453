"""Executes the 6507's less frequent instructions; cpu.py executes the others.

All take the same steps: compute the operand's address, read the operand, do the operation, write the result. As in
ale-py, an instruction's cycles pass before it reads or writes.
"""

import numpy as np

from accel_rl.emulator import opcodes as op
from accel_rl.emulator.arithmetic import add, subtract
from accel_rl.emulator.bus import branch, pull, push, read_bus, read_pointer, write_bus
from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import (
    CYCLES,
    LAST_ACCESS_WAS_READ,
    PC,
    SP,
    STOP,
    A,
    B,
    C,
    D,
    I,
    V,
    X,
    Y,
)

JAMMED = 2
_DECODED = np.array(op.OPERATION << 16 | op.MODE << 8 | op.CYCLES << 2 | op.LENGTH, np.int32)


@jit
def execute(s, rom, screen, opcode, low, high, result):
    """Executes the fetched instruction at s[PC]; returns the byte that decides N and Z (cpu.py)."""
    decoded = _DECODED[opcode]
    operation, mode = i32(decoded >> 16), i32(decoded >> 8 & 15)
    s[PC] = (s[PC] + (decoded & 3)) & 0xFFFF
    s[CYCLES] += decoded >> 2 & 15
    if operation >= op.JSR and operation <= op.PLP:
        return _use_stack(s, rom, screen, operation, low, result)
    a, x, y, carry = s[A], s[X], s[Y], s[C]

    # The operand's address, or its value if it has no address
    address, value, bus, index = i32(-1), low, low, i32(0)
    if mode == op.ZERO:
        address = low
    elif mode == op.ZERO_X:
        address = i32((low + x) & 0xFF)
    elif mode == op.ZERO_Y:
        address = i32((low + y) & 0xFF)
    elif mode == op.ABSOLUTE or mode == op.ABSOLUTE_X or mode == op.ABSOLUTE_Y:
        bus = high
        index = i32(0) if mode == op.ABSOLUTE else (x if mode == op.ABSOLUTE_X else y)
        address = i32((low + (high << 8) + index) & 0xFFFF)
    elif mode == op.INDIRECT_X or mode == op.INDIRECT_Y:
        low, high = read_pointer(s, screen, i32((low + x) & 0xFF) if mode == op.INDIRECT_X else low, s[CYCLES], low)
        bus = high
        index = i32(0) if mode == op.INDIRECT_X else y
        address = i32((low + (high << 8) + index) & 0xFFFF)
    elif mode == op.IMPLIED:
        value = a
    if low + index > 0xFF and operation < op.FIRST_WRITE:  # the address is on the next page
        s[CYCLES] += 1

    if address >= 0 and (operation < op.FIRST_WRITE or operation >= op.FIRST_MODIFY):
        value = read_bus(s, rom, screen, address, bus)

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
        s[V] = value >> 6 & 1
        result = i32((a & value) | (value & 0x80) << 1)
    elif operation == op.CMP or operation == op.CPX or operation == op.CPY:
        register = a if operation == op.CMP else (x if operation == op.CPX else y)
        carry = i32(register >= value)
        result = i32((register - value) & 0xFF)
    elif operation == op.ADC:
        a, carry, s[V] = add(a, value, carry, s[D])
        result = a
    elif operation == op.SBC:
        a, carry, s[V] = subtract(a, value, carry, s[D])
        result = a
    elif operation == op.INC or operation == op.ISB:
        value = result = i32((value + 1) & 0xFF)
        if operation == op.ISB:
            a, carry, s[V] = subtract(a, value, carry, s[D])
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
            a, carry, s[V] = add(a, value, carry, s[D])
            result = a
    elif operation == op.BVC or operation == op.BVS:
        if s[V] == (operation == op.BVS):
            s[PC], s[CYCLES] = branch(s[PC], low, s[CYCLES])
    elif operation == op.JMP:  # JMP (nn); the address's high byte is read from the same page
        s[PC] = i32(read_bus(s, rom, screen, low | high << 8, high))
        s[PC] |= read_bus(s, rom, screen, i32((low + 1) & 0xFF | high << 8), s[PC]) << 8
    elif operation == op.TSX:
        x = result = s[SP]
    elif operation == op.TXS:
        s[SP] = x
    elif operation == op.CLV:
        s[V] = 0
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
        s[V] = (a >> 6 ^ a >> 5) & 1
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
        s[STOP] = JAMMED
    s[A], s[X], s[Y], s[C] = a, x, y, carry

    if operation >= op.FIRST_WRITE and operation < op.FIRST_OTHER:
        if mode == op.IMPLIED:
            s[A] = value
        else:
            write_bus(s, rom, screen, address, value)
    return result


@jit
def _use_stack(s, rom, screen, operation, low, result):
    """Executes a call, a return, BRK, or a push or pull of A or the flags; returns the new result."""
    flags = i32(0x20 | s[B] << 4 | s[D] << 3 | s[I] << 2 | s[C] | s[V] << 6)
    flags |= i32((result & 0x180 != 0) << 7 | (result & 0xFF == 0) << 1)
    if operation == op.JSR:
        push(s, rom, screen, s[PC], i32(2))
        s[PC] = low | read_bus(s, rom, screen, s[PC], i32(0)) << 8
    elif operation == op.BRK:
        push(s, rom, screen, i32(s[PC] << 8 | flags | 0x10), i32(3))
        s[B] = s[I] = 1
        s[PC] = read_bus(s, rom, screen, i32(0xFFFE), i32(0))
        s[PC] |= read_bus(s, rom, screen, i32(0xFFFF), s[PC]) << 8
    elif operation == op.PHA or operation == op.PHP:
        push(s, rom, screen, s[A] if operation == op.PHA else flags, i32(1))
    elif operation == op.PLA:
        s[A] = result = pull(s, rom, screen, i32(1))
    else:
        pulled = pull(s, rom, screen, i32(1 + (operation == op.RTS) + 2 * (operation == op.RTI)))
        if operation == op.RTS or operation == op.RTI:
            s[PC] = pulled >> 8 & 0xFF | (pulled & 0xFF) << 8
        if operation == op.RTS:
            read_bus(s, rom, screen, s[PC], i32(0))
            s[PC] = (s[PC] + 1) & 0xFFFF
        else:
            flags = i32(pulled >> 16 if operation == op.RTI else pulled)
            s[V], s[B], s[D], s[I], s[C] = flags >> 6 & 1, 1, flags >> 3 & 1, flags >> 2 & 1, flags & 1
            result = i32((flags & 0x80) << 1 | (flags >> 1 & 1 ^ 1))
    s[LAST_ACCESS_WAS_READ] = 1
    return result
