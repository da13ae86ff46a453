"""Emulates the 6507: runs a program instruction by instruction.

The opcodes that make up most of all programs are done at once. All others go through the same steps: compute the
address of the operand; read it; do the operation; write the result. Tables (opcodes.py) say what a byte means. The
cycles of an instruction have passed before it reads or writes, as in ale-py.
"""

import numpy as np

from accel_rl.emulator import opcodes as op
from accel_rl.emulator.arithmetic import add, subtract
from accel_rl.emulator.bus import is_plain, plain_window, pull, push, read_bus, write_bus
from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.riot import INTIM, POLL_CYCLES, polls_to_come
from accel_rl.emulator.state import (
    CYCLES,
    DATA_BUS,
    INSTRUCTIONS,
    LAST_ACCESS_WAS_READ,
    PC,
    RAM,
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
DECODED = np.array(op.OPERATION << 16 | op.MODE << 8 | op.CYCLES << 2 | op.LENGTH, np.int32)


@jit
def run(s, rom, screen, max_instructions):
    """Runs a program until the frame has ended (s[STOP] is set) or so many instructions are executed."""
    if s[STOP]:
        return
    a, x, y, pc, carry = s[A], s[X], s[Y], s[PC], s[C]
    result = i32(s[N] << 8 | (1 - s[Z]))  # N is bit 7 or 8 of it, Z says that the lower eight are 0
    cycles = s[CYCLES]
    window, window_size, to_rom = i32(0), u32(0), i32(0)
    left = i32(max_instructions)
    while left > 0:
        left = i32(left - 1)

        # Fetch, three bytes at once where reading has no consequence.
        place = i32(pc & 0x1FFF)
        if u32(place - window) < window_size:
            at = u32(place + to_rom)
            opcode, low, high = u32(rom[at]), i32(rom[at + u32(1)]), i32(rom[at + u32(2)])
        else:
            pc = i32(pc & 0xFFFF)
            s[CYCLES] = cycles
            opcode = u32(read_bus(s, rom, screen, pc, i32(0)))
            length = DECODED[opcode] & 3
            low, high = i32(0), i32(0)
            if length > 1:
                low = read_bus(s, rom, screen, i32((pc + 1) & 0xFFFF), i32(opcode))
            if length > 2:
                high = read_bus(s, rom, screen, i32((pc + 2) & 0xFFFF), low)
            window, window_size, to_rom = plain_window(s, pc)
        # Every instruction has a byte and takes two cycles; what it has more is a constant in each case below, so that the
        # next one can be fetched before this one is decoded.
        pc, cycles = i32(pc + 1), i32(cycles + 2)

        # The most frequent instructions
        if opcode == 0x85 or opcode == 0x86 or opcode == 0x84:  # STA n, STX n, STY n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            value = a if opcode == 0x85 else (x if opcode == 0x86 else y)
            if low & 0x80:
                s[RAM + (low & 0x7F)] = value
            else:
                s[CYCLES] = cycles
                tia_write(s, screen, i32(low & 0x3F), value)
                cycles = s[CYCLES]
                if s[STOP]:
                    break
        elif opcode == 0xD0:  # BNE
            pc = i32(pc + 1)
            if result & 0xFF:
                pc, cycles = branch(pc, low, cycles)
        elif opcode == 0xF0:  # BEQ
            pc = i32(pc + 1)
            if not result & 0xFF:
                pc, cycles = branch(pc, low, cycles)
        elif opcode == 0x10:  # BPL
            pc = i32(pc + 1)
            if not result & 0x180:
                pc, cycles = branch(pc, low, cycles)
        elif opcode == 0x30:  # BMI
            pc = i32(pc + 1)
            if result & 0x180:
                pc, cycles = branch(pc, low, cycles)
        elif opcode == 0x90:  # BCC
            pc = i32(pc + 1)
            if not carry:
                pc, cycles = branch(pc, low, cycles)
        elif opcode == 0xB0:  # BCS
            pc = i32(pc + 1)
            if carry:
                pc, cycles = branch(pc, low, cycles)
        elif opcode == 0x4C:  # JMP nn
            cycles = i32(cycles + 1)
            pc = i32(low | high << 8)
        elif opcode == 0xA5:  # LDA n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            a = result = read_zero(s, screen, low, cycles, low)
        elif opcode == 0xB5:  # LDA n,X
            pc, cycles = i32(pc + 1), i32(cycles + 2)
            a = result = read_zero(s, screen, i32((low + x) & 0xFF), cycles, low)
        elif opcode == 0xAD or opcode == 0xAE or opcode == 0xAC:  # LDA nn, LDX nn, LDY nn
            pc, cycles = i32(pc + 2), i32(cycles + 2)
            address = i32(low + (high << 8))
            place = i32(address & 0x1FFF)
            if u32(place - window) < window_size:
                result = i32(rom[u32(place + to_rom)])
            else:
                s[CYCLES] = cycles
                place = i32(pc & 0x1FFF)
                if address == INTIM and u32(place - window) < window_size and pc & 0xFF < 0xFE and pc & 0xFF > 2:
                    at = u32(place + to_rom)
                    if rom[at + u32(1)] == 0xFB:
                        polls = min(polls_to_come(s, rom[at]), left >> 1)
                        left = i32(left - 2 * polls)
                        cycles = i32(cycles + POLL_CYCLES * polls)
                        s[CYCLES] = cycles
                result = read_bus(s, rom, screen, address, high)
                window_size = window_after(s, address, window_size)
            if opcode == 0xAD:
                a = result
            elif opcode == 0xAE:
                x = result
            else:
                y = result
        elif opcode == 0xBD or opcode == 0xB9 or opcode == 0xB1:  # LDA nn,X; LDA nn,Y; LDA (n),Y
            if opcode == 0xB1:
                pc, cycles = i32(pc + 1), i32(cycles + 3)
                low, high = read_pointer(s, screen, low, cycles, low)
            else:
                pc, cycles = i32(pc + 2), i32(cycles + 2)
            low = i32(low + (x if opcode == 0xBD else y))
            cycles = i32(cycles + (low >> 8))
            place = i32(low + (high << 8) & 0x1FFF)
            if u32(place - window) < window_size:
                a = result = i32(rom[u32(place + to_rom)])
            else:
                s[CYCLES] = cycles
                a = result = read_bus(s, rom, screen, i32(low + (high << 8) & 0xFFFF), high)
                window_size = window_after(s, place, window_size)
        elif opcode == 0xA6:  # LDX n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            x = result = read_zero(s, screen, low, cycles, low)
        elif opcode == 0xA4:  # LDY n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            y = result = read_zero(s, screen, low, cycles, low)
        elif opcode == 0xA9:  # LDA #n
            pc = i32(pc + 1)
            a = result = low
        elif opcode == 0xA2:  # LDX #n
            pc = i32(pc + 1)
            x = result = low
        elif opcode == 0xA0:  # LDY #n
            pc = i32(pc + 1)
            y = result = low
        elif opcode == 0x29:  # AND #n
            pc = i32(pc + 1)
            a = result = i32(a & low)
        elif opcode == 0xCA:  # DEX
            x = result = i32((x - 1) & 0xFF)
        elif opcode == 0x88:  # DEY
            y = result = i32((y - 1) & 0xFF)
        elif opcode == 0xE8:  # INX
            x = result = i32((x + 1) & 0xFF)
        elif opcode == 0xC8:  # INY
            y = result = i32((y + 1) & 0xFF)
        elif opcode == 0xAA:  # TAX
            x = result = a
        elif opcode == 0xA8:  # TAY
            y = result = a
        elif opcode == 0x8A:  # TXA
            a = result = x
        elif opcode == 0x98:  # TYA
            a = result = y
        elif opcode == 0x18:  # CLC
            carry = i32(0)
        elif opcode == 0x38:  # SEC
            carry = i32(1)
        elif opcode == 0x0A:  # ASL A
            carry = i32(a >> 7)
            a = result = i32(a << 1 & 0xFF)
        elif opcode == 0x4A:  # LSR A
            carry = i32(a & 1)
            a = result = i32(a >> 1)
        elif opcode == 0xC9:  # CMP #n
            pc = i32(pc + 1)
            carry = i32(a >= low)
            result = i32((a - low) & 0xFF)
        elif opcode == 0xC0:  # CPY #n
            pc = i32(pc + 1)
            carry = i32(y >= low)
            result = i32((y - low) & 0xFF)
        elif opcode == 0xE0:  # CPX #n
            pc = i32(pc + 1)
            carry = i32(x >= low)
            result = i32((x - low) & 0xFF)
        elif opcode == 0xEA:  # NOP
            pass
        else:
            # All others: the operand's address, or its value where it has none
            decoded = DECODED[opcode]
            operation, mode = i32(decoded >> 16), i32(decoded >> 8 & 15)
            cycles = i32(cycles + (decoded >> 2 & 15) - 2)
            bus = low
            address = i32(-1)
            value = low
            if mode == op.IMPLIED:
                value = a
            elif mode == op.ZERO:
                pc = i32(pc + 1)
                address = low
            elif mode == op.ZERO_X:
                pc = i32(pc + 1)
                address = i32((low + x) & 0xFF)
            elif mode == op.ZERO_Y:
                pc = i32(pc + 1)
                address = i32((low + y) & 0xFF)
            elif mode == op.ABSOLUTE:
                pc = i32(pc + 2)
                address = i32(low | high << 8)
                bus = high
            elif mode == op.ABSOLUTE_X:
                pc = i32(pc + 2)
                address = i32((low + (high << 8) + x) & 0xFFFF)
                bus = high
                if low + x > 0xFF and operation < op.FIRST_WRITE:
                    cycles = i32(cycles + 1)
            elif mode == op.ABSOLUTE_Y:
                pc = i32(pc + 2)
                address = i32((low + (high << 8) + y) & 0xFFFF)
                bus = high
                if low + y > 0xFF and operation < op.FIRST_WRITE:
                    cycles = i32(cycles + 1)
            elif mode == op.INDIRECT_X or mode == op.INDIRECT_Y:
                pc = i32(pc + 1)
                pointer = i32((low + x) & 0xFF) if mode == op.INDIRECT_X else low
                low, high = read_pointer(s, screen, pointer, cycles, low)
                bus = high
                address = i32(low | high << 8)
                if mode == op.INDIRECT_Y:
                    address = i32((address + y) & 0xFFFF)
                    if low + y > 0xFF and operation < op.FIRST_WRITE:
                        cycles = i32(cycles + 1)

            else:  # immediate, jumps, calls, branches on V
                pc = i32((pc + (decoded & 3) - 1) & 0xFFFF)

            # Read
            if address >= 0 and (operation < op.FIRST_WRITE or operation >= op.FIRST_MODIFY):
                place = i32(address & 0x1FFF)
                if address & 0x1280 == 0x80:
                    value = s[RAM + (address & 0x7F)]
                elif u32(place - window) < window_size:
                    value = i32(rom[u32(place + to_rom)])
                else:
                    s[CYCLES] = cycles
                    value = read_bus(s, rom, screen, address, bus)
                    window_size = window_after(s, address, window_size)

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
                    pc, cycles = branch(pc, low, cycles)
            elif operation == op.JMP:
                target = i32(low | high << 8)
                if mode == op.JUMP_INDIRECT:
                    s[CYCLES] = cycles
                    low = read_bus(s, rom, screen, target, high)
                    high = read_bus(s, rom, screen, i32(target & 0xFF00 | (target + 1) & 0xFF), low)
                    target = i32(low | high << 8)
                pc = target
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
                s[STOP] = 2
                break
            elif operation >= op.JSR and operation <= op.PLP:  # the stack
                s[CYCLES] = cycles
                pc = i32(pc & 0xFFFF)
                flags = i32(0x20 | s[B] << 4 | s[D] << 3 | s[I] << 2 | carry | s[V] << 6)
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
                            s[V] = flags >> 6 & 1
                            s[B], s[D], s[I] = 1, flags >> 3 & 1, flags >> 2 & 1
                            result = i32((flags & 0x80) << 1 | (flags >> 1 & 1 ^ 1))
                s[LAST_ACCESS_WAS_READ] = 1
                window_size = u32(0)
                cycles = s[CYCLES]
                if s[STOP]:
                    break

            # Write
            if operation >= op.FIRST_WRITE and operation < op.FIRST_OTHER:
                if mode == op.IMPLIED:
                    a = value
                elif address & 0x1280 == 0x80:
                    s[RAM + (address & 0x7F)] = value
                else:
                    s[CYCLES] = cycles
                    write_bus(s, rom, screen, address, value)
                    if address & 0x1000:
                        window_size = u32(0)
                    cycles = s[CYCLES]
                    if s[STOP]:
                        break

    s[A], s[X], s[Y], s[PC], s[C] = a, x, y, pc & 0xFFFF, carry
    s[N] = result >> 8 | result >> 7 & 1
    s[Z] = result & 0xFF == 0
    s[CYCLES] = cycles
    s[INSTRUCTIONS] += i32(max_instructions - left)


@jit
def branch(pc, distance, cycles):
    """Returns where a branch leads, and the time when it is there: a cycle later, or two if that is another page."""
    target = i32((pc + (distance ^ 0x80) - 0x80) & 0xFFFF)
    return target, i32(cycles + (1 if (target ^ pc) & 0xFF00 == 0 else 2))


@jit
def read_zero(s, screen, address, cycles, bus):
    """Reads a byte on page zero."""
    if address & 0x80:
        return s[RAM + (address & 0x7F)]
    s[CYCLES] = cycles
    s[DATA_BUS] = bus
    return i32(tia_read(s, screen, address))


@jit
def read_pointer(s, screen, address, cycles, bus):
    """Reads an address, low byte first, on page zero."""
    low = read_zero(s, screen, address, cycles, bus)
    return low, read_zero(s, screen, i32((address + 1) & 0xFF), cycles, low)


@jit
def window_after(s, address, window_size):
    """Returns the window's size after a read there: none if a bank may have been switched."""
    return u32(0) if address & 0x1000 and not is_plain(s, address) else window_size
