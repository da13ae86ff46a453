"""Runs a game's program step by step and shows the state of the hardware."""

import cmd
from collections.abc import Iterator
from typing import Any

import numpy as np

from accel_rl.emulator import opcodes
from accel_rl.emulator import state as words
from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.cartridges import KIND_FE, KINDS
from accel_rl.emulator.rules import ACTIONS

# The registers' names by address, for writes and for reads (Stella Programmer's Guide)
_WRITTEN = """VSYNC VBLANK WSYNC RSYNC NUSIZ0 NUSIZ1 COLUP0 COLUP1 COLUPF COLUBK CTRLPF REFP0 REFP1 PF0 PF1 PF2 RESP0
    RESP1 RESM0 RESM1 RESBL AUDC0 AUDC1 AUDF0 AUDF1 AUDV0 AUDV1 GRP0 GRP1 ENAM0 ENAM1 ENABL HMP0 HMP1 HMM0 HMM1 HMBL
    VDELP0 VDELP1 VDELBL RESMP0 RESMP1 HMOVE HMCLR CXCLR"""
WRITTEN = tuple(_WRITTEN.split())
_COLLISIONS = ("CXM0P", "CXM1P", "CXP0FB", "CXP1FB", "CXM0FB", "CXM1FB", "CXBLPF", "CXPPMM")
READ = (*_COLLISIONS, *(f"INPT{port}" for port in range(6)))
PORTS = {0x280: "SWCHA", 0x281: "SWACNT", 0x282: "SWCHB", 0x283: "SWBCNT", 0x284: "INTIM", 0x285: "INSTAT"}
PORTS |= {0x294: "TIM1T", 0x295: "TIM8T", 0x296: "TIM64T", 0x297: "T1024T"}
OBJECTS = ("player 0", "player 1", "missile 0", "missile 1", "ball")
_OPERANDS = ("", "#{}", "{}", "{},X", "{},Y", "{}", "{},X", "{},Y", "({},X)", "({}),Y", "{}", "{}", "({})", "{}")


def disassemble(code: bytes, address: int) -> str:
    """Returns the text of the instruction code at an address, as in `STA GRP0`."""
    opcode = code[0]
    name, mode = opcodes.OPERATIONS[opcodes.OPERATION[opcode]], opcodes.MODE[opcode]
    value = int.from_bytes(code[1 : opcodes.LENGTH[opcode]], "little")
    if mode == opcodes.RELATIVE:
        text = f"${(address + 2 + (value ^ 0x80) - 0x80) & 0xFFFF:04X}"
    elif mode == opcodes.IMMEDIATE:
        text = f"${value:02X}"
    elif mode in (opcodes.ZERO, opcodes.ZERO_X, opcodes.ZERO_Y) and value < 0x40:
        writes = opcodes.FIRST_WRITE <= opcodes.OPERATION[opcode] < opcodes.FIRST_OTHER
        names, register = (WRITTEN, value) if writes else (READ, value & 0x0F)
        text = names[register] if register < len(names) else f"${value:02X}"
    else:
        text = PORTS.get(value, f"${value:04X}" if opcodes.LENGTH[opcode] == 3 else f"${value:02X}")
    return f"{name} {_OPERANDS[mode].format(text)}".rstrip()


class Debugger(cmd.Cmd):
    """A command-line debugger of environment 0 of a batch. actions: for the coming frames."""

    prompt = "> "

    def __init__(self, atari: BatchAtari, actions: Iterator[int], **streams: Any):
        super().__init__(**streams)
        self.use_rawinput = not streams
        self._atari, self._actions = atari, actions
        self._action, self._frame = next(actions), 0
        kind = KINDS[self._word("CARTRIDGE")]
        self.intro = f"{atari.rules.name} ({kind}), after its reset. `help` lists the commands.\n{self._instruction()}"

    def do_next(self, line: str) -> None:
        """next [N]: runs N instructions (1) and shows each that comes next. An empty line does the same once."""
        for _ in range(self._count(line)):
            self._run(1)
            self._say(self._instruction())

    def do_line(self, line: str) -> None:
        """line [N]: runs to the Nth next line of the picture (1), or to the end of the frame."""
        for _ in range(self._count(line)):
            frame, line_now = self._frame, self._position()[0]
            while (self._frame, self._position()[0]) == (frame, line_now) and not self._word("TERMINAL"):
                self._run(1)
        self._say(self._instruction())

    def do_frame(self, line: str) -> None:
        """frame [N]: runs to the end of the Nth frame (1)."""
        for _ in range(self._count(line)):
            self._run(2**31 - 1)
        lives, score = self._word("LIVES"), self._word("SCORE")
        over = ", the game is over" if self._word("TERMINAL") else ""
        self._say(f"frame {self._frame}: score {score}, lives {lives}{over}")
        self._say(self._instruction())

    def do_until(self, line: str) -> None:
        """until ADDRESS: runs until the program counter is there (hexadecimal), for 60 frames at most."""
        target, last = int(line, 16), self._frame + 60
        self._run(1)
        while self._word("PC") != target and self._frame < last and not self._word("TERMINAL"):
            self._run(1)
        self._say(self._instruction())

    def do_objects(self, _: str) -> None:
        """objects: shows the TIA's objects: their positions, and their pixels when the picture was last drawn."""
        for index, name in enumerate(OBJECTS):
            self._say(f"{name:10} at {self._word('POSITION', index):3}  {self._pixels(index)}")
        self._say(f"playfield          {self._pixels(len(OBJECTS))}")
        registers = (f"{name}={self._word('REGISTER', index):02X}" for index, name in enumerate(WRITTEN))
        self._say("\n".join(" ".join(group) for group in zip(*[registers] * 9, strict=False)))
        self._say(f"collisions {self._word('COLLISIONS'):016b}")

    def do_ram(self, _: str) -> None:
        """ram: shows the 128 bytes of memory and the ports."""
        ram = self._atari.ram[0]
        for row in range(0, 128, 16):
            self._say(f"{0x80 + row:02X}: " + " ".join(f"{byte:02X}" for byte in ram[row : row + 16]))
        ports = ("SWCHA", "SWCHB", "INPT4", "INPT5", "TIMER", "TIMER_SHIFT")
        self._say(" ".join(f"{name}={self._word(name):02X}" for name in ports))

    def do_press(self, line: str) -> None:
        """press ACTION: presses this from the next frame on, instead of the file's actions."""
        if line not in ACTIONS:
            self._say(f"actions: {', '.join(ACTIONS)}")
            return
        self._actions = iter(lambda: ACTIONS.index(line), None)
        self._action = ACTIONS.index(line)

    def do_screen(self, line: str) -> None:
        """screen FILE.png: writes the picture, complete up to the last visible change."""
        import cv2

        picture = self._atari.palette()[self._atari.screens()[0]]
        if not line or not cv2.imwrite(line, np.ascontiguousarray(picture.repeat(2, axis=1)[:, :, ::-1])):
            self._say(f"cannot write {line or 'without a name'}")

    def do_quit(self, _: str) -> bool:
        """quit: ends."""
        return True

    do_EOF = do_quit  # noqa: N815

    def emptyline(self) -> bool:
        self.do_next("")
        return False

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line))
        except ValueError as error:  # not a number
            self._say(str(error))
            return False

    def _run(self, count: int) -> None:
        """Runs instructions up to the end of the frame at most."""
        if self._atari.step_instructions([self._action], count)[0]:
            self._frame += 1
            self._action = next(self._actions)

    def _word(self, name: str, offset: int = 0) -> int:
        return int(self._atari.words(0)[getattr(words, name) + offset])

    def _position(self) -> tuple[int, int]:
        """Returns the current line of the frame, and the clock within it."""
        return divmod(3 * self._word("CYCLES") + self._word("LEFT_OVER"), 228)

    def _instruction(self) -> str:
        """Returns the next instruction, its time, and the processor's registers."""
        address = self._word("PC")
        code = bytes(self._peek(address + offset) for offset in range(3))
        line, clock = self._position()
        flags = "".join(name if self._word(name) else "-" for name in ("N", "V", "B", "D", "I", "Z", "C"))
        registers = " ".join(f"{name}={self._word(name):02X}" for name in ("A", "X", "Y", "SP"))
        return f"{line:3}:{clock:03}  {address:04X}  {disassemble(code, address):16} {registers} {flags}"

    def _peek(self, address: int) -> int:
        """Returns the byte at an address of RAM or ROM, without the side effects of a read."""
        if not address & 0x1000:
            return self._word("RAM", address & 0x7F)
        if self._word("CARTRIDGE") == KIND_FE:
            return int(self._atari.rom[address & 0xFFF | (~address & 0x2000) >> 1])
        return int(self._atari.rom[self._word("SLICE", address >> 10 & 3) + (address & 0x3FF)])

    def _pixels(self, item: int) -> str:
        """Returns an object's pixels in the line, four per character."""
        masks = self._atari.words(0)[words.MASK + 5 * item : words.MASK + 5 * item + 5].astype(np.uint32)
        bits = "".join(f"{int(mask):032b}"[::-1] for mask in masks)
        return "".join("#" if "1" in bits[at : at + 4] else "." for at in range(0, 160, 4))

    def _count(self, line: str) -> int:
        return int(line) if line else 1

    def _say(self, text: str) -> None:
        self.stdout.write(f"{text}\n")
