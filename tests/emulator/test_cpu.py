"""The 6507 against ale-py's: single instructions, decimal mode, branches, stops in mid-frame, frames of real games."""

import random

import pytest

from accel_rl.emulator import opcodes
from accel_rl.emulator import state as words
from tests.emulator.machine import JUMP_TO_WAIT, PROGRAM, WAIT_END, Lab, differences, run_frame
from tests.emulator.roms import assemble

RTS, RTI = 0x60, 0x40
BRANCHES = (0x10, 0x30, 0x50, 0x70, 0x90, 0xB0, 0xD0, 0xF0)
JAMS = {0x02, 0x12, 0x22, 0x32, 0x42, 0x52, 0x62, 0x72, 0x92, 0xB2, 0xD2, 0xF2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("roms")


@pytest.fixture(scope="module")
def lab(folder):
    return Lab(assemble(PROGRAM), folder)


def randomize(state, rng):
    state.ram[:] = [rng.randrange(256) for _ in range(128)]
    for name in ("A", "X", "Y"):
        state[name] = rng.randrange(256)
    state["SP"] = rng.choice((0xFF, 0xFE, 0x80 + rng.randrange(128)))
    for name in ("N", "V", "B", "D", "I", "NOT_Z", "C"):
        state[name] = rng.randrange(2)


@pytest.mark.parametrize("cases", [512, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_opcode_leaves_what_it_leaves_in_ale_py(lab, cases):
    """Every opcode leaves all words of the hardware as ale-py leaves them."""
    rng, failures, checked = random.Random(cases), [], 0
    for case in range(cases):
        opcode = case % 256
        if opcode in JAMS:
            continue
        state = lab.state()
        randomize(state, rng)
        low, high = rng.randrange(256), rng.choice((0x00, 0x01, 0x02, 0xF1, 0xF2, 0xFF))
        operands = {opcodes.JUMP: (0x00, 0xF1), opcodes.CALL: (0x00, 0xF1), opcodes.RELATIVE: (3, *JUMP_TO_WAIT)}
        operands[opcodes.JUMP_INDIRECT] = (low, 0xF2)
        code = (opcode, *operands.get(opcodes.MODE[opcode], (low, high)[: opcodes.LENGTH[opcode] - 1]))
        code += (*JUMP_TO_WAIT, *JUMP_TO_WAIT)
        start = 0x80 + rng.randrange(120 - len(code))
        state.ram[start - 0x80 : start - 0x80 + len(code)] = code
        state["PC"] = start
        if opcode in (RTS, RTI):
            state["SP"] = 0xFC
            state.ram[0x7D:] = (0xFF, 0xF0, 0) if opcode == RTS else (low, 0x00, 0xF1)
        s, after = lab.frame(state)
        if after["PC"] != WAIT_END:  # it has overwritten its own code and may run anywhere, even in the TIA
            lab.settle()
            continue
        checked += 1
        if found := differences(s, after):
            name = opcodes.OPERATIONS[opcodes.OPERATION[opcode]]
            failures.append(f"{name} {bytes(code).hex()} at {start:#x} {found}"[:300])
    assert not failures, "\n".join(failures)
    assert checked > 0.85 * cases


def test_jam_stops_the_processor_for_ever(lab):
    state = lab.state()
    state.ram[:3] = 0xEA, 0x02, 0xEA
    state["PC"] = 0x80
    s, after = lab.frame(state)
    lab.settle()
    assert (s[words.PC], s[words.CYCLES], s[words.STOP]) == (after["PC"], after["CYCLES"], 2) == (0x82, 4, 2)
    run_frame(s, lab.rom)
    assert (s[words.PC], s[words.CYCLES]) == (0x82, 4)


def test_branches_across_pages(folder):
    """Branches near the edges of pages take the same cycles as in ale-py."""
    rng, rom, starts = random.Random(0), bytearray(assemble(PROGRAM)), []
    for page, opcode in zip(range(0x600, 0xE00, 0x100), BRANCHES, strict=True):
        start, distance = page - rng.randrange(8), rng.choice((-1, 1)) * rng.randrange(16, 100)
        rom[start : start + 5] = opcode, distance % 256, *JUMP_TO_WAIT
        rom[start + 2 + distance : start + 5 + distance] = JUMP_TO_WAIT
        starts.append(start)
    lab = Lab(bytes(rom), folder)
    for start in starts * 8:
        state = lab.state()
        randomize(state, rng)
        state["PC"] = 0xF000 + start
        assert differences(*lab.frame(state)) == {}, hex(start)


DECIMAL = """
        LDX #0
next:   LDA $81
        PHA
        LDA $80
        PLP
        {operation} $82
        PHP
        STA $90,X
        PLA
        STA $B0,X
        INC $82
        INX
        CPX #32
        BNE next
        JMP wait
"""


EVERY_SUM = [(a, carry, first) for a in range(256) for carry in (0, 1) for first in range(0, 256, 32)]
SOME_SUMS = [(0, 0, 0x80), (0, 0, 0x9A), *random.Random(0).sample(EVERY_SUM, 60)]


@pytest.mark.parametrize("cases", [SOME_SUMS, pytest.param(EVERY_SUM, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("operation", ["ADC", "SBC"])
def test_decimal_mode(operation, cases, folder):
    """In decimal mode, results and flags for a byte and each of 32 consecutive ones equal ale-py's."""
    lab = Lab(assemble(PROGRAM + "        .org $F500\n" + DECIMAL.format(operation=operation)), folder)
    for a, carry, first in cases:
        state = lab.state()
        state["PC"], state["SP"] = 0xF500, 0xFF
        state.ram[:3] = a, 0x08 | carry, first
        assert differences(*lab.frame(state)) == {}, (a, carry, first)
