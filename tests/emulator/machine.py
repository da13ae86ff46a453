"""A console for tests that starts in one of ale-py's states, runs, and is compared with ale-py's next state."""

from pathlib import Path

import numpy as np

from accel_rl.emulator import core
from accel_rl.emulator import state as words
from accel_rl.emulator.ale_states import AleState, copy_from_ale, copy_to_ale
from accel_rl.emulator.cartridges import KINDS, prepare
from accel_rl.emulator.consoles import NO_AGENT
from accel_rl.emulator.state import STATE_WORDS
from tests.emulator.roms import assemble, open_ale, restore_state, save_state

NO_RULES, NO_STEPS = np.zeros(64, np.int32), np.zeros((0, 4), np.int32)
SCREEN = np.zeros((2, 320, 160), np.uint8)

# These words describe ale-py's picture and its counters for the game, not the hardware.
NOT_HARDWARE = {"FRAME", "EPISODE_FRAME", "MODE", "DIFFICULTY", "LEFT_PADDLE", "RIGHT_PADDLE"}
NOT_HARDWARE |= {"LAST_FRAME_LINES", "LINE", "START_DISPLAY_CLOCK", "STOP_DISPLAY_CLOCK", "UPDATE_CLOCK"}
NOT_HARDWARE |= {"CLOCKS_TO_LINE_END"}


def run_frame(s: np.ndarray, rom: np.ndarray, screen: np.ndarray = SCREEN) -> None:
    """Runs a frame in which the player does nothing; it is painted if s[PAINT] is set."""
    _command(core.STEP, s, rom, screen, bool(s[words.PAINT]))


def _command(order: int, s: np.ndarray, rom: np.ndarray, screen: np.ndarray, draw: bool = False) -> None:
    numbers, flags = np.zeros(1, np.int32), np.zeros((2, 1), np.bool_)
    inputs = (np.ones(1, np.bool_), numbers, s[None], rom, screen.reshape(1, -1), NO_RULES, NO_STEPS)
    outputs = (np.zeros((1, 1), np.uint8), numbers.copy(), flags, numbers.copy(), *NO_AGENT)
    core.command(order, 1, draw, *inputs, *outputs)


def console_in(state: AleState, rom: np.ndarray, pal: bool = False) -> np.ndarray:
    """Returns the words of a console with this cartridge in one of ale-py's states, with untouched controllers."""
    s = np.zeros(STATE_WORDS, np.int32)
    s[words.CARTRIDGE] = KINDS.index(state.cartridge)
    _command(core.RESET, s, rom, SCREEN)
    s[words.FIRST_LINE], s[words.NUM_LINES], s[words.MAX_LINE] = 34, 210, 342 if pal else 290
    s[words.PAL], s[words.COMB], s[words.LAST_ACCESS_WAS_READ] = pal, 1, 1
    s[words.SWCHA], s[words.SWCHB], s[words.INPT4], s[words.INPT5] = 0xFF, 0x3F, 0x80, 0x80
    s[words.PADDLE : words.PADDLE + 4] = -1
    copy_from_ale(s, state)
    return s


def differences(s: np.ndarray, state: AleState) -> dict[str, tuple[int, int]]:
    """Returns the words in which a console differs from one of ale-py's states: name -> (ours, ale-py's)."""
    ours = AleState(bytes(state))
    copy_to_ale(s, ours)
    found = {name: (ours[name], state[name]) for name in state.names() if ours[name] != state[name]}
    if min(found.get("VSYNC_CLOCK", (0, 0))) > 2**30:  # VSYNC is off, so its earliest end has no meaning
        del found["VSYNC_CLOCK"]
    if abs(np.subtract(*found.get("MUSIC_FRACTION", (0, 9)))) < 9:  # ale-py saves eight digits
        del found["MUSIC_FRACTION"]
    for i in np.flatnonzero(ours.ram != state.ram):
        found[f"RAM {i + 0x80:#x}"] = (int(ours.ram[i]), int(state.ram[i]))
    if state.cartridge_ram is not None and (ours.cartridge_ram != state.cartridge_ram).any():
        found["CARTRIDGE_RAM"] = (0, 0)
    return {name: pair for name, pair in found.items() if name not in NOT_HARDWARE}


# Frames of 262 lines for ale-py's reset; at `wait` a frame ends, by writes past its last line that change no register.
# Pages 0xF2 and 0xF3 hold only bytes of pointers to 0xF1F1 and 0xF4F4.
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
        .org $F1F1
        JMP wait
        .org $F200
        .repeat 256
        .byte $F1
        .end
        .repeat 256
        .byte $F4
        .end
        .org $F4F4
        JMP wait
"""
JUMP_TO_WAIT = (0x4C, 0x00, 0xF1)
WAIT_END = 0xF102  # the program counter when a frame has ended at `wait`


class Lab:
    """ale-py and a console with the same cartridge, which start from the same states."""

    def __init__(self, rom: bytes, folder: Path, game: str = "robotank"):
        self.rom = prepare(rom)
        self.ale = open_ale(rom, folder, game)
        self.ale.reset_game()
        self.start = save_state(self.ale)
        self.pal = self.start["LINE"] > 285

    def state(self) -> AleState:
        """Returns a copy of the state after the reset, which the caller may change."""
        return AleState(bytes(self.start))

    def frame(self, state: AleState) -> tuple[np.ndarray, AleState]:
        """Runs a frame from a state; returns the states after it, here and in ale-py."""
        restore_state(self.ale, state)
        self.ale.act(0)
        after = save_state(self.ale)
        s = console_in(state, self.rom, self.pal)
        run_frame(s, self.rom)
        return s, after

    def settle(self) -> None:
        """Discards an unfinished frame, which ale-py's states do not hold."""
        restore_state(self.ale, self.start)
        for _ in range(3):
            self.ale.act(0)

    def run_in_ram(self, source: str, **changes: int) -> dict[str, tuple[int, int]]:
        """Runs a short program in RAM for a frame; returns the differences at its end. changes: words of the state."""
        code = assemble(f"{source}\nforever: STA $2D\n JMP forever", 128, 0x80)
        state = self.state()
        state.ram[:] = list(code)
        state["PC"] = 0x80
        for name, value in changes.items():
            state[name] = value
        return differences(*self.frame(state))
