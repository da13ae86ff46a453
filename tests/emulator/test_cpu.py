"""The 6507 against ale-py's: single instructions, random programs, frames of real games, stops in mid-frame."""

import random
from collections import Counter

import pytest

from accel_rl.emulator import opcodes
from accel_rl.emulator import state as words
from accel_rl.emulator.ale_states import AleState
from accel_rl.emulator.cartridges import prepare
from tests.emulator.machine import FRAME, LONGEST_FRAME, SCREEN, console_in, differences, drive
from tests.emulator.roms import assemble, open_ale, restore_state, save_state

# Frames of 262 lines; at `wait` a frame ends, by a write past its last line, without a change of a register.
PROGRAM = """
        LDA #2
frame:  STA VSYNC
        STA WSYNC
        STA WSYNC
        STA WSYNC
        LSR A
        STA VSYNC
        LDX #131
line:   STA WSYNC
        STA WSYNC
        DEX
        BNE line
        LDA #2
        JMP frame
        .org $F100
wait:   STA $2D
        JMP wait
        .org $F200
"""
WAIT = (0x4C, 0x00, 0xF1)  # JMP wait
JAMS = {0x02, 0x12, 0x22, 0x32, 0x42, 0x52, 0x62, 0x72, 0x92, 0xB2, 0xD2, 0xF2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("roms")


class Lab:
    """ale-py and a console with the same cartridge, which start from the same states."""

    def __init__(self, rom, folder):
        self.rom = prepare(rom)
        self.ale = open_ale(rom, folder)
        self.ale.reset_game()
        self.start = save_state(self.ale)

    def state(self):
        return AleState(bytes(self.start))

    def frame(self, state):
        """Returns in what a frame from a state ends differently, and where ale-py's processor is."""
        restore_state(self.ale, state)
        self.ale.act(0)
        after = save_state(self.ale)
        s = console_in(state, self.rom)
        drive(s, self.rom, SCREEN, FRAME, LONGEST_FRAME)
        if s[words.STOP] != 1:  # a frame that has not ended: what ale-py knows of it is in none of its states
            restore_state(self.ale, self.start)
            for _ in range(3):
                self.ale.act(0)
        return differences(s, after), after


@pytest.fixture(scope="module")
def lab(folder):
    return Lab(assemble(PROGRAM), folder)


def random_state(lab, rng):
    state = lab.state()
    state.ram[:] = [rng.randrange(256) for _ in range(128)]
    for name in ("A", "X", "Y"):
        state[name] = rng.randrange(256)
    state["SP"] = rng.choice((0xFF, 0xFE, 0x80 + rng.randrange(128)))
    for name in ("N", "V", "B", "D", "I", "NOT_Z", "C"):
        state[name] = rng.randrange(2)
    return state


def check_opcodes(lab, cases, seed):
    rng, failures = random.Random(seed), Counter()
    for case in range(cases):
        opcode = case % 256
        if opcode in JAMS:
            continue
        state = random_state(lab, rng)
        mode = opcodes.MODE[opcode]
        high = rng.choice((0x00, 0x01, 0x02, 0xF1, 0xF2, 0xFF))
        operands = {opcodes.JUMP: (0x00, 0xF1), opcodes.CALL: (0x00, 0xF1), opcodes.RELATIVE: (3, *WAIT)}
        code = (opcode, *operands.get(mode, (rng.randrange(256), high)[: opcodes.LENGTH[opcode] - 1]), *WAIT, *WAIT)
        start = 0x80 + rng.randrange(128 - len(code))
        state.ram[start - 0x80 : start - 0x80 + len(code)] = code
        state["PC"] = start
        found, _ = lab.frame(state)
        if found:
            failures[
                f"{opcode:02X} {opcodes.OPERATIONS[opcodes.OPERATION[opcode]]} {bytes(code).hex()} {found}"[:200]
            ] += 1
    assert not failures, "\n".join(failures)


def test_every_opcode_leaves_what_it_leaves_in_ale_py(lab):
    """Would catch a wrong result, flag, address, cycle, or write: all words of the hardware are compared."""
    check_opcodes(lab, 512, 0)


@pytest.mark.slow
def test_every_opcode_many_times(lab):
    check_opcodes(lab, 20_000, 1)
