"""Programs that write the TIA's registers at known times, and comparisons of their frames with ale-py's."""

import random
from pathlib import Path

import numpy as np

from accel_rl.emulator import state as words
from accel_rl.emulator.cartridges import prepare
from tests.emulator.machine import console_in, differences, run_frame
from tests.emulator.roms import assemble, open_ale, save_state

LINES = 262
# ale-py shows the picture from line 34 on. Freeway's rules do not end a game of zeros; it starts when byte 0 is 0.
FIRST_LINE, GAME = 34, "freeway"
STROBES = ["RESP0", "RESP1", "RESM0", "RESM1", "RESBL", "HMOVE", "HMCLR", "CXCLR"]
FLAGS = ["ENAM0", "ENAM1", "ENABL", "VDELP0", "VDELP1", "VDELBL", "RESMP0", "RESMP1"]
REGISTERS = ["COLUP0", "COLUP1", "COLUPF", "COLUBK", "NUSIZ0", "NUSIZ1", "CTRLPF", "REFP0", "REFP1", "PF0", "PF1"]
REGISTERS += ["PF2", "GRP0", "GRP1", "HMP0", "HMP1", "HMM0", "HMM1", "HMBL", "VBLANK", *STROBES, *FLAGS]
COLLISIONS = ["CXM0P", "CXM1P", "CXP0FB", "CXP1FB", "CXM0FB", "CXM1FB", "CXBLPF", "CXPPMM"]


class Program:
    """One frame's instructions in order; they begin in line 0, 5 cycles after its start."""

    def __init__(self) -> None:
        self.source, self.line, self._loops = "", 0, 0

    def write(self, register: str, value: int | None = None) -> "Program":
        """Writes a value in 5 cycles, or A's current value in 3 cycles."""
        self.source += f" STA {register}\n" if value is None else f" LDA #{value}\n STA {register}\n"
        return self

    def read(self, register: str, byte: int) -> "Program":
        """Reads a register into a byte of RAM, counted from 1, in 6 cycles."""
        self.source += f" LDA {register}\n STA {0x80 + byte}\n"
        return self

    def wait(self, cycles: int) -> "Program":
        """Waits 0, 2 or more cycles."""
        while cycles > 15:
            self.source, cycles = self.source + " JSR return\n", cycles - 12
        if cycles % 2:
            self.source, cycles = self.source + " BIT $FF\n", cycles - 3
        self.source += " NOP\n" * (cycles // 2)
        return self

    def lines(self, number: int = 1) -> "Program":
        """Waits for the start of a later line; continues at its cycle 0, or at cycle 4 after more than 4 lines."""
        self.line += number
        if number <= 4:
            self.source += " STA WSYNC\n" * number
        else:
            self._loops += 1
            loop = f"loop{self._loops}"
            self.source += f" LDX #{number}\n{loop}: STA WSYNC\n DEX\n BNE {loop}\n"
        return self

    def writes(self, **values: int) -> "Program":
        """Writes several registers."""
        for register, value in values.items():
            self.write(register, value)
        return self

    def rom(self, lines: int = LINES) -> bytes:
        """Returns a cartridge whose frames have this many lines."""
        rest = lines - 3 - self.line
        source = f"{_START}{_FRAME}{self.source}"
        while rest > 0:
            source, rest = (
                source + f" LDX #{min(rest, 100)}\nrest{rest}: STA WSYNC\n DEX\n BNE rest{rest}\n",
                rest - 100,
            )
        return assemble(source + " JMP frame\nreturn: RTS\n")


_START = " SEI\n CLD\n LDX #$FF\n TXS\n LDA #0\n LDX #127\nclear: STA $80,X\n DEX\n BPL clear\n"
_FRAME = "frame: LDA #2\n STA VSYNC\n STA WSYNC\n STA WSYNC\n STA WSYNC\n LDA #0\n STA VSYNC\n"


def check(rom: bytes, folder: Path, frames: int = 2) -> None:
    """Runs frames here and in ale-py from one of its states; all registers and pixels must be equal."""
    ale, cartridge = open_ale(rom, folder, GAME), prepare(rom)
    for _ in range(3):  # else the first two pictures may have stale lines
        ale.act(0)
    before = save_state(ale)
    s = console_in(before, cartridge, pal=before["LINE"] > 285)
    s[words.PAINT], s[words.NUM_LINES] = 1, ale.getScreenDims()[0]
    screen = np.zeros((2, 320, 160), np.uint8)
    for frame in range(frames):
        ale.act(0)
        run_frame(s, cartridge, screen)
        assert not differences(s, save_state(ale)), (frame, differences(s, save_state(ale)))
        theirs = ale.getScreen()
        ours = screen[s[words.FRAME_BUFFER], : len(theirs)]
        rows = np.flatnonzero((ours != theirs).any(axis=1))
        assert not len(rows), (frame, f"rows {rows.tolist()}", ours[rows[0]].tolist(), theirs[rows[0]].tolist())


def random_program(seed: int) -> Program:
    """Returns a program of about 150 writes at random times, with a few reads of collisions."""
    rng, program, reads = random.Random(seed), Program(), 0
    program.lines(25).writes(COLUP0=0x22, COLUP1=0x44, COLUPF=0x66, COLUBK=0x88)
    while program.line < 215 and program.source.count("\n") < 900:
        if rng.random() < 0.6:
            for _ in range(rng.randrange(1, 4)):
                program.wait(rng.choice((0, 0, 0, *range(2, 40))))
                register = rng.choice(REGISTERS)
                value = rng.choice((0, 2 if register == "VBLANK" else 3))
                if register not in FLAGS + ["VBLANK"]:
                    value = rng.randrange(256)
                program.write(register, None if register in STROBES else value)
            if rng.random() < 0.15 and reads < 100:
                reads += 1
                program.read(rng.choice(COLLISIONS), reads)
        program.lines(rng.choice((1, 1, 1, 2, 3)))
    return program
