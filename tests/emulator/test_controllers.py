"""Joysticks, paddles and switches as programs read them, against ale-py."""

import ale_py
import numpy as np
import pytest
from ale_py import roms as ale_roms

from accel_rl.emulator.ale_states import copy_from_ale
from accel_rl.emulator.controllers import NUM_ACTIONS
from tests.emulator.consoles import Console
from tests.emulator.roms import assemble, restore_state, save_state, start_ale

# Records its readings, and the lines until each paddle's capacitor is charged. It runs in RAM, so it can run on any
# game's console: the ROM decides which controllers are plugged in.
PADDLE = "LDA INPT{0}\n BPL next{0}\n LDA $F8 + {0}\n BNE next{0}\n STX $F8 + {0}\nnext{0}:"
RECORDER = f"""
start:  LDA #$82
        STA VBLANK
        STA WSYNC
        LDX #0
        STX $F8
        STX $F9
        STX $FA
        STX $FB
        STX VBLANK
line:   STA WSYNC
        INX
        CPX #240
        BEQ done
        {"".join(PADDLE.format(socket) + chr(10) for socket in range(4))}
        JMP line
done:   LDA SWCHA
        STA $FC
        LDA INPT4
        STA $FD
        LDA INPT5
        STA $FE
        LDA #2
        STA VSYNC
        STA WSYNC
        STA WSYNC
        LDA SWCHB
        STA $FF
        LDA #0
        STA VSYNC
        JMP start
    """


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("breakout", {"PADDLES": 1}),
        ("pong", {"PADDLES": 2, "SWAPPED_PORTS": 1}),
        ("wizard_of_wor", {"SWAPPED_PORTS": 1}),
    ],
)
def test_programs_read_what_ale_pys_controllers_give(game, settings):
    """Programs read the same bytes from joysticks, paddles and switches as in ale-py, for every action."""
    path = ale_roms.get_rom_path(game)
    ale = start_ale(path)
    program = assemble(RECORDER, origin=0x80)[:128]
    start = save_state(ale)
    start.ram[:] = np.frombuffer(program, np.uint8)
    start["PC"], start["D"] = 0x80, 0
    restore_state(ale, start)
    ours = Console(path.read_bytes(), **settings)
    copy_from_ale(ours.s, start)
    for action in [*range(NUM_ACTIONS), *[3] * 20, *[4] * 40, 12, 0]:
        assert not ale.game_over()  # the rules read the program as the game's memory, which must not end a game
        ale.act(ale_py.Action(action))
        ours.act(action)
        assert (ours.ram() == ale.getRAM()).all(), action
