"""A console for tests: put into one of ale-py's states, run, and compared with the state that ale-py comes to."""

import numpy as np

from accel_rl.emulator import state as words
from accel_rl.emulator.ale_states import AleState, copy_from_ale, copy_to_ale
from accel_rl.emulator.cartridges import KINDS, reset_cartridge
from accel_rl.emulator.compiled import address, entry
from accel_rl.emulator.cpu import run
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.emulator.tia import end_frame, reset_tia, start_frame

RESET, START_FRAME, RUN, END_FRAME = 1, 2, 4, 8  # what `drive` does, in this order
FRAME = START_FRAME | RUN | END_FRAME
LONGEST_FRAME = 25_000  # instructions
SCREEN = np.zeros((2, 320, 160), np.uint8)

# Where ale-py's picture is, and what it counts for the game: no business of the hardware.
NOT_HARDWARE = {
    "FRAME",
    "EPISODE_FRAME",
    "MODE",
    "DIFFICULTY",
    "LEFT_PADDLE",
    "RIGHT_PADDLE",
    "LAST_FRAME_LINES",
    "LINE",
}
NOT_HARDWARE |= {"START_DISPLAY_CLOCK", "STOP_DISPLAY_CLOCK", "UPDATE_CLOCK", "CLOCKS_TO_LINE_END"}


@entry
def drive(s, rom, screen, parts, instructions):
    """Does parts of a frame; one function for all tests, so that the processor is compiled once."""
    s, rom, screen = address(s), address(rom), address(screen)
    if parts & RESET:
        reset_tia(s)
        reset_cartridge(s)
    if parts & START_FRAME:
        start_frame(s)
    if parts & RUN:
        run(s, rom, screen, instructions)
    if parts & END_FRAME:
        end_frame(s, screen)


def console_in(state: AleState, rom: np.ndarray, pal: bool = False) -> np.ndarray:
    """Returns the words of a console with this cartridge in a state of ale-py's; nobody touches the controllers."""
    s = np.zeros(STATE_WORDS, np.int32)
    s[words.CARTRIDGE] = KINDS.index(state.cartridge)
    drive(s, rom, SCREEN, RESET, 0)
    s[words.FIRST_LINE], s[words.NUM_LINES], s[words.MAX_LINE] = 34, 210, 342 if pal else 290
    s[words.PAL], s[words.COMB], s[words.LAST_ACCESS_WAS_READ] = pal, 1, 1
    s[words.SWCHA], s[words.SWCHB], s[words.INPT4], s[words.INPT5] = 0xFF, 0x3F, 0x80, 0x80
    s[words.PADDLE : words.PADDLE + 4] = -1
    copy_from_ale(s, state)
    return s


def differences(s: np.ndarray, state: AleState) -> dict[str, tuple[int, int]]:
    """Returns the words in which a console is not in a state of ale-py's: name -> (ours, ale-py's)."""
    ours = AleState(bytes(state))
    copy_to_ale(s, ours)
    found = {name: (ours[name], state[name]) for name in state.names() if ours[name] != state[name]}
    found |= {
        f"RAM {i + 0x80:#x}": (int(ours.ram[i]), int(state.ram[i])) for i in range(128) if ours.ram[i] != state.ram[i]
    }
    if state.cartridge_ram is not None and (ours.cartridge_ram != state.cartridge_ram).any():
        found["CARTRIDGE_RAM"] = (0, 0)
    return {name: pair for name, pair in found.items() if name not in NOT_HARDWARE}
