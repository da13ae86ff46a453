"""Whole consoles against ale-py: frames of all lengths, pictures painted later, and resets that fail."""

import numpy as np
import pytest

from accel_rl.emulator import console, core
from tests.emulator.consoles import Console
from tests.emulator.roms import assemble, open_ale

# The television's vertical synchronization begins each frame.
VSYNC = "LDA #2\n STA VSYNC\n STA WSYNC\n STA WSYNC\n STA WSYNC\n LDA #0\n STA VSYNC\n"


def both(source: str, folder):
    """Starts the console and ale-py with a program."""
    rom = assemble(source)
    return Console(rom), open_ale(rom, folder, "boxing")


# Each frame has its own color and a random length; some frames use up their instructions.
JITTER = f"""
        LDA #1
        STA $81
start:  {VSYNC}
        INC $80
        INC $80
        LDA $80
        STA COLUBK
        LDA $81
        ASL A
        BCC even
        EOR #$1D
even:   STA $81
        LDX $81
line:   STA WSYNC
        DEX
        BNE line
        STX COLUBK
        LDA $80
        AND #$0C
        BNE start
        LDY #60
outer:  LDX #250
inner:  DEX
        BNE inner
        DEY
        BNE outer
        JMP start
    """


@pytest.mark.parametrize("share_looked_at", [1.0, 0.2])
def test_short_frames_show_lines_of_the_frame_before_the_last(share_looked_at, tmp_path):
    """Pictures equal ale-py's, stale lines included, however few frames are painted at once or looked at."""
    ours, ale = both(JITTER, tmp_path)
    rng = np.random.default_rng(2)
    for frame in range(150):
        ale.act(0)
        looked_at, at_once = rng.random() < share_looked_at, rng.random() < 0.5
        ours.act(0, paint=looked_at and at_once)
        if looked_at:
            assert (ours.picture() == ale.getScreen()).all(), frame
    ale.reset_game()
    ours.reset()
    assert (ours.picture() == ale.getScreen()).all()


@pytest.mark.parametrize("access", ["NOP", "STA PF0", "STA $3F", "LDA INPT4", "STA RESP0"])
def test_a_frame_in_progress_is_seen_up_to_the_last_access_of_the_tia(access, tmp_path):
    """An unfinished frame is seen up to the TIA's last access, even one that changes nothing."""
    source = f"{VSYNC} LDA #$1A\n STA COLUBK\n LDX #100\nline: STA WSYNC\n DEX\n BNE line\n {access}\never: JMP ever"
    ours, ale = both(source, tmp_path)
    ale.act(0)
    ours.act(0)
    assert (ours.picture() == ale.getScreen()).all()


def test_a_reset_program_jumps_and_fails(tmp_path):
    """A reset program repeats its presses until the game reacts, and fails if it never does."""
    wait = f"start: {VSYNC}\n LDA SWCHB\n AND #2\n BNE start\n INC $90\n JMP start"
    presses = [(console.PRESS, 0, 2, 1), (console.JUMP_UNLESS, 0x10 | 0x0F << 12, 9, -2)]
    ours = Console(assemble(wait), np.array([(console.PRESS, 0, 0, 3), *presses], np.int32))
    assert ours.ram()[0x10] & 0x0F == 9
    ours._program = np.array([(console.PRESS, 0, 0, 1), (console.JUMP_UNLESS, 0x10, 1, -2)], np.int32)
    assert not ours.order(core.RESET)
