"""Emulates the 6507: fetches instructions and executes the most frequent ones; execution.py executes the others.

About 19 of 20 instructions of the benchmarked games are executed here, with registers in local variables, and lengths
and cycles as constants.
"""

import numpy as np

from accel_rl.emulator.arithmetic import add, subtract
from accel_rl.emulator.bus import branch, plain_window, read_bus, read_pointer, read_zero
from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.cuda.warps import lanes_with
from accel_rl.emulator.execution import execute
from accel_rl.emulator.opcodes import LENGTH
from accel_rl.emulator.riot import INTIM, POLL_CYCLES, polls_to_come
from accel_rl.emulator.state import CYCLES, INSTRUCTIONS, PC, RAM, SLICE, SP, STOP, A, B, C, D, I, N, V, X, Y, Z
from accel_rl.emulator.tia import tia_write

u32 = np.uint32


@jit
def run(s, rom, screen, max_instructions, end_cycle=None, lanes=None):
    """Runs the program until the frame ends (s[STOP] is set) or max_instructions are executed.

    On a GPU, it also stops at end_cycle, and the `lanes` of a warp (cuda/warps.py) meet before each instruction."""
    a, x, y, pc, carry = s[A], s[X], s[Y], s[PC], s[C]
    result = i32(s[N] << 8 | (1 - s[Z]))  # N is bit 7 or 8; Z is set if the lower eight bits are 0
    cycles = s[CYCLES]
    window, window_size, to_rom = i32(0), u32(0), i32(0)  # see plain_window; valid until its slice is switched
    slice_word, slice_start = i32(SLICE), i32(0)
    max_instructions = left = i32(0 if s[STOP] else max_instructions)
    while end_cycle is not None or left > 0:
        if end_cycle is not None:  # Numba removes this branch if it is None
            goes_on = left > 0 and cycles < end_cycle
            lanes = lanes_with(lanes, goes_on)
            if not goes_on:
                break
        left = i32(left - 1)

        # Fetch three bytes at once if reads have no side effect.
        place = i32(pc & 0x1FFF)
        if u32(place - window) < window_size:
            at = u32(place + to_rom)
            opcode, low, high = u32(rom[at]), i32(rom[at + u32(1)]), i32(rom[at + u32(2)])
        else:
            pc = i32(pc & 0xFFFF)
            s[CYCLES] = cycles
            opcode = u32(read_bus(s, rom, screen, pc, i32(0)))
            low, high = i32(0), i32(0)
            if LENGTH[opcode] > 1:
                low = read_bus(s, rom, screen, i32((pc + 1) & 0xFFFF), i32(opcode))
            if LENGTH[opcode] > 2:
                high = read_bus(s, rom, screen, i32((pc + 2) & 0xFFFF), low)
            window, window_size, to_rom = plain_window(s, pc)
            slice_word = i32(SLICE + (pc >> 10 & 3))
            slice_start = s[slice_word]

        # Every instruction has at least one byte and two cycles. The rest is a constant in each case below, so that the
        # host can fetch the next instruction before it executes this one.
        pc, cycles = i32(pc + 1), i32(cycles + 2)
        is_rare = False

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
                    max_instructions, left = i32(max_instructions - left), i32(0)  # ends the loop
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
        elif (  # LDA, LDX, LDY nn; LDA, LDY nn,X; LDA, LDX nn,Y; LDA (n),Y; LDA (n,X)
            (opcode == 0xAD or opcode == 0xAE or opcode == 0xAC)
            or (opcode == 0xBD or opcode == 0xBC)
            or (opcode == 0xB9 or opcode == 0xBE)
            or (opcode == 0xB1 or opcode == 0xA1)
        ):
            if opcode == 0xB1:
                pc, cycles = i32(pc + 1), i32(cycles + 3)
                low, high = read_pointer(s, screen, low, cycles, low)
            elif opcode == 0xA1:
                pc, cycles = i32(pc + 1), i32(cycles + 4)
                low, high = read_pointer(s, screen, i32((low + x) & 0xFF), cycles, low)
            else:
                pc, cycles = i32(pc + 2), i32(cycles + 2)
            if opcode == 0xBD or opcode == 0xBC:
                low = i32(low + x)
            elif opcode == 0xB9 or opcode == 0xBE or opcode == 0xB1:
                low = i32(low + y)
            cycles = i32(cycles + (low >> 8))
            address = i32(low + (high << 8) & 0xFFFF)
            place = i32(address & 0x1FFF)
            if u32(place - window) < window_size:
                result = i32(rom[u32(place + to_rom)])
            else:
                s[CYCLES] = cycles
                place = i32(pc & 0x1FFF)
                if address == INTIM and u32(place - window) < window_size and pc & 0xFF < 0xFE and pc & 0xFF > 2:
                    at = u32(place + to_rom)
                    if rom[at + u32(1)] == 0xFB and opcode <= 0xAE:
                        polls = min(polls_to_come(s, rom[at]), left >> 1)
                        left = i32(left - 2 * polls)
                        cycles = i32(cycles + POLL_CYCLES * polls)
                        s[CYCLES] = cycles
                result = read_bus(s, rom, screen, address, high)
                if s[slice_word] != slice_start:
                    window_size = u32(0)
            if opcode & 1:
                a = result
            elif opcode & 2:
                x = result
            else:
                y = result
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
        elif opcode == 0x25:  # AND n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            a = result = i32(a & read_zero(s, screen, low, cycles, low))
        elif opcode == 0x05:  # ORA n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            a = result = i32(a | read_zero(s, screen, low, cycles, low))
        elif opcode == 0x45:  # EOR n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            a = result = i32(a ^ read_zero(s, screen, low, cycles, low))
        elif opcode == 0x24:  # BIT n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            value = read_zero(s, screen, low, cycles, low)
            s[V] = value >> 6 & 1
            result = i32((a & value) | (value & 0x80) << 1)
        elif opcode == 0xC5 or opcode == 0xC4 or opcode == 0xE4:  # CMP n, CPY n, CPX n
            pc, cycles = i32(pc + 1), i32(cycles + 1)
            value = read_zero(s, screen, low, cycles, low)
            register = a if opcode & 1 else (x if opcode & 0x20 else y)
            carry = i32(register >= value)
            result = i32((register - value) & 0xFF)
        elif opcode == 0x69 or opcode == 0x65 or opcode == 0x75:  # ADC #n; n; n,X
            pc = i32(pc + 1)
            if opcode != 0x69:
                cycles = i32(cycles + (1 if opcode == 0x65 else 2))
                low = read_zero(s, screen, low if opcode == 0x65 else i32((low + x) & 0xFF), cycles, low)
            a, carry, s[V] = add(a, low, carry, s[D])
            result = a
        elif opcode == 0xE9 or opcode == 0xE5:  # SBC #n, SBC n
            pc = i32(pc + 1)
            if opcode == 0xE5:
                cycles = i32(cycles + 1)
                low = read_zero(s, screen, low, cycles, low)
            a, carry, s[V] = subtract(a, low, carry, s[D])
            result = a
        elif opcode == 0xC6 or opcode == 0xE6:  # DEC n, INC n
            if low & 0x80:
                pc, cycles = i32(pc + 1), i32(cycles + 3)
                result = i32(s[RAM + (low & 0x7F)] + (1 if opcode & 0x20 else -1) & 0xFF)
                s[RAM + (low & 0x7F)] = result
            else:
                is_rare = True
        elif opcode == 0x95:  # STA n,X
            pc, cycles = i32(pc + 1), i32(cycles + 2)
            low = i32(low + x)
            if low & 0x80:
                s[RAM + (low & 0x7F)] = a
            else:
                s[CYCLES] = cycles
                tia_write(s, screen, i32(low & 0x3F), a)
                cycles = s[CYCLES]
                if s[STOP]:
                    max_instructions, left = i32(max_instructions - left), i32(0)  # ends the loop
        elif opcode == 0x20:  # JSR nn
            stack, place = s[SP], i32(pc + 1 & 0x1FFF)
            if stack > 0x80 and u32(place - window) < window_size:
                s[RAM + (stack & 0x7F)] = pc + 1 >> 8 & 0xFF
                s[RAM + (stack - 1 & 0x7F)] = pc + 1 & 0xFF
                s[SP] = stack - 2
                pc, cycles = i32(low | i32(rom[u32(place + to_rom)]) << 8), i32(cycles + 4)
            else:
                is_rare = True
        elif opcode == 0x60:  # RTS
            stack = s[SP]
            if 0x80 <= stack < 0xFE:
                cycles = i32(cycles + 4)
                s[SP] = stack + 2
                pc = i32(s[RAM + (stack + 1 & 0x7F)] | s[RAM + (stack + 2 & 0x7F)] << 8)
                if u32(i32(pc & 0x1FFF) - window) >= window_size:
                    s[CYCLES] = cycles
                    read_bus(s, rom, screen, pc, i32(0))
                    if s[slice_word] != slice_start:
                        window_size = u32(0)
                pc = i32(pc + 1)
            else:
                is_rare = True
        elif opcode == 0x48 or opcode == 0x08:  # PHA, PHP
            cycles = i32(cycles + 1)
            value = a
            if opcode == 0x08:
                value = i32(0x20 | s[B] << 4 | s[D] << 3 | s[I] << 2 | carry | s[V] << 6)
                value |= i32((result & 0x180 != 0) << 7 | (result & 0xFF == 0) << 1)
            stack = s[SP]
            s[SP] = stack - 1 & 0xFF
            if stack & 0x80:
                s[RAM + (stack & 0x7F)] = value
            else:
                s[CYCLES] = cycles
                tia_write(s, screen, i32(stack & 0x3F), value)
                cycles = s[CYCLES]
                if s[STOP]:
                    max_instructions, left = i32(max_instructions - left), i32(0)  # ends the loop
        elif opcode == 0x68:  # PLA
            stack = s[SP]
            if 0x80 <= stack < 0xFF:
                s[SP] = stack + 1
                a = result = s[RAM + (stack + 1 & 0x7F)]
                cycles = i32(cycles + 2)
            else:
                is_rare = True
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
        elif opcode == 0x9A:  # TXS
            s[SP] = x
        elif opcode == 0x6C:  # JMP (nn); the address's high byte is read from the same page
            s[CYCLES] = cycles = i32(cycles + 3)
            pc = read_bus(s, rom, screen, i32(low | high << 8), high)
            pc = i32(pc | read_bus(s, rom, screen, i32((low + 1) & 0xFF | high << 8), pc) << 8)
            if s[slice_word] != slice_start:
                window_size = u32(0)
        elif opcode == 0xEA:  # NOP
            pass
        else:
            is_rare = True
        if is_rare:
            s[A], s[X], s[Y], s[C], s[PC], s[CYCLES] = a, x, y, carry, i32(pc - 1), i32(cycles - 2)
            result = execute(s, rom, screen, opcode, low, high, result)
            a, x, y, carry, pc, cycles = s[A], s[X], s[Y], s[C], s[PC], s[CYCLES]
            if s[slice_word] != slice_start:
                window_size = u32(0)
            if s[STOP]:
                max_instructions, left = i32(max_instructions - left), i32(0)  # ends the loop

    s[A], s[X], s[Y], s[PC], s[C] = a, x, y, pc & 0xFFFF, carry
    s[N] = result >> 8 | result >> 7 & 1
    s[Z] = result & 0xFF == 0
    s[CYCLES] = cycles
    s[INSTRUCTIONS] += i32(max_instructions - left)
