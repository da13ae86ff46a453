"""The TIA against ale-py's: random programs, and separately each rule beyond the Stella Programmer's Guide."""

import numpy as np
import pytest

from accel_rl.emulator import state as words
from accel_rl.emulator.cartridges import prepare
from accel_rl.emulator.objects import motion
from tests.emulator.machine import console_in, run_frame
from tests.emulator.roms import open_ale, save_state
from tests.emulator.tia_programs import GAME, Program, check, random_program

VISIBLE = {"COLUP0": 0x22, "COLUP1": 0x44, "COLUPF": 0x66, "COLUBK": 0x88}


def start(line: int = 40, **values: int) -> Program:
    """Returns a program that has set these registers, at cycle 0 of a line."""
    return Program().lines(line - 2).writes(**VISIBLE, **values).lines(2)


@pytest.mark.parametrize("seed", range(2))
def test_random_programs(seed, tmp_path):
    """Frames of random programs equal ale-py's in all registers and pixels."""
    check(random_program(seed).rom(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_programs(seed, tmp_path):
    check(random_program(seed).rom(), tmp_path)


@pytest.mark.parametrize("size", [0, 3, 7])
def test_player_set_in_mid_line(size, tmp_path):
    """A player set in mid-line hides its first copy there, unless an old copy is about to begin, and finishes a copy
    in progress. This holds for each distance between the places and each NUSIZ0."""
    program = start(36, NUSIZ0=size, GRP0=0xFF)
    for cycle in range(24, 75):
        program.lines().wait(40 - 3).write("RESP0").lines().wait(cycle - 3).write("RESP0").lines()
    check(program.rom(), tmp_path)


def test_player_set_at_the_start_of_a_line(tmp_path):
    """A player set at cycle 0 shows its first copy in that line; one set later in the blank does not."""
    program = start(GRP0=0xFF)
    for cycle in (73, 74, 76, 77, 78, 79, 85, 98):
        program.lines().wait(40 - 3).write("RESP0").lines().wait(cycle - 3).write("RESP0").lines(3)
    check(program.rom(), tmp_path)


def test_player_set_before_the_first_line(tmp_path):
    """A player set before the picture hides its copy in the first line, unless NUSIZ0 is written before."""
    for written in ({}, {"NUSIZ0": 0}):
        program = Program().lines(20).writes(**VISIBLE, GRP0=0xFF).lines().wait(20).write("RESP0").lines(4).wait(50)
        check(program.write("RESP0").writes(**written).rom(), tmp_path)


@pytest.mark.parametrize("register", ["RESM0", "RESBL"])
def test_missile_and_ball_set_in_mid_line(register, tmp_path):
    """A missile moves 8 clocks late, the ball at once."""
    program = start(36, NUSIZ0=0x21, CTRLPF=0x20, ENAM0=2, ENABL=2)
    for cycle in range(18, 66):
        program.lines().wait(37).write(register).lines().wait(cycle - 3).write(register).lines(2)
    check(program.rom(), tmp_path)


def test_motion_by_the_cycle_of_hmove(tmp_path):
    """How far HMOVE moves each object depends on its cycle."""
    program = start(30, HMP0=0x70, HMP1=0x80, HMM0=0x20, HMM1=0xE0, HMBL=0x10)
    program.writes(GRP0=0xFF, GRP1=0x81, ENAM0=2, ENAM1=2, ENABL=2)
    for cycle in (3, 8, 12, 17, 20, 21, 54, 60, 64, 69, 74, 75):
        program.lines().wait(37)
        for register in ("RESP0", "RESP1", "RESM0", "RESM1", "RESBL"):
            program.write(register)
        program.lines(2).wait(cycle - 3).write("HMOVE").lines(3)
    check(program.rom(), tmp_path)


def test_motion_of_the_programmers_guide():
    """HMOVE right after WSYNC moves objects by up to 7 to the left or 8 to the right (page 41)."""
    expected = [0, -1, -2, -3, -4, -5, -6, -7, 8, 7, 6, 5, 4, 3, 2, 1]
    assert [motion.__wrapped__(3, value << 4) for value in range(16)] == expected


@pytest.mark.parametrize("line", [33, 40])
def test_hmove_blanks_one_line(line, tmp_path):
    """HMOVE blanks the start of one line if written up to cycle 20, before the picture, or at cycle 75."""
    program = Program().lines(line - 2).write("COLUBK", 0x88)
    for cycle in (0, 20, 21, 75) if line > 33 else (20,):
        program.lines().wait(76 + cycle - 3).write("HMOVE").lines(2)
    check(program.rom(), tmp_path)


def test_resets_that_shortly_follow_hmove(tmp_path):
    """An object that is set shortly after HMOVE takes part in the rest of the motion."""
    program = start(ENAM0=2, ENAM1=2, ENABL=2)
    for hmove, register, cycles in (
        (3, "RESM0", 20), (3, "RESM1", 3), (3, "RESBL", 3), (3, "RESBL", 6), (3, "RESBL", 7), (5, "RESBL", 18)
    ):  # fmt: skip
        program.lines().wait(hmove - 3).write("HMOVE").wait(cycles - 3).write(register).lines(3)
    check(program.rom(), tmp_path)


def test_reflection_changed_in_mid_line(tmp_path):
    """From pixel 79 on, CTRLPF's reflection waits for the next line."""
    program = start(PF1=0x81, PF2=0x13)
    for cycle in range(40, 56):
        program.lines().wait(cycle - 5).write("CTRLPF", 1).lines(2).write("CTRLPF", 0)
    check(program.rom(), tmp_path)


def test_priority_and_score(tmp_path):
    """With score and priority on, the players' colours show only where nothing but the playfield is on."""
    program = start(PF0=0xF0, PF1=0xF0, PF2=0xF0).wait(5)
    for strobe in ("RESP0", "RESP1", "RESBL"):
        program.write(strobe).wait(2)
    for control in (0, 2, 4, 6):
        program.lines().write("CTRLPF", control | 0x20).lines(4).writes(GRP0=0xFF).lines(4).writes(GRP1=0xFF).lines(4)
        program.writes(ENABL=2).lines(4).writes(GRP0=0, GRP1=0).lines(4).write("ENABL", 0)
    check(program.rom(), tmp_path)


@pytest.mark.parametrize(("size", "end"), [(0x00, {}), (0x21, {"HMM0": 0x50}), (0x00, {"NUSIZ0": 0x15})])
def test_stars_of_cosmic_ark(size, end, tmp_path):
    """With HMM0 changed from 7 to 6, 21 cycles after HMOVE, missile 0 moves on each line until the next HMOVE. It is
    wider or hidden in some lines."""
    program = start(HMM0=0x70, NUSIZ0=size, ENAM0=2).wait(40).write("RESM0").lines().write("HMOVE").wait(16)
    program.write("HMM0", 0x60).lines(60).wait(30).writes(**end).lines(60)
    if not end:
        program.write("HMOVE")
    check(program.rom(), tmp_path, frames=3)


def test_latched_collisions_are_cleared_in_mid_line(tmp_path):
    program = start(PF0=0xF0, PF1=0xFF, PF2=0xFF, ENABL=2, ENAM0=2, NUSIZ0=0x30, CTRLPF=0x30)
    for byte in range(1, 21):
        program.lines().wait(2 + 3 * byte).write("CXCLR").read("CXBLPF", byte).read("CXM0FB", byte + 40)
    check(program.rom(), tmp_path)


def test_no_collisions_while_blank_or_outside_of_the_picture(tmp_path):
    program = (
        Program().lines(5).write("CXCLR").writes(PF0=0xF0, PF1=0xFF, PF2=0xFF, ENABL=2, VBLANK=2).read("CXBLPF", 4)
    )
    program.lines(50).read("CXBLPF", 1).write("VBLANK", 0).lines(2).read("CXBLPF", 2).write("CXCLR").write("VBLANK", 2)
    program.lines(170).write("VBLANK", 0).lines(30).read("CXBLPF", 3)
    check(program.rom(), tmp_path)


def test_inputs(tmp_path):
    program = Program().write("VBLANK", 0x82).lines(40).read("INPT0", 6).read("INPT4", 1).read("INPT5", 2)
    program.write("VBLANK", 0x40).lines(100).read("INPT0", 3).read("INPT4", 4).read("INPT5", 5)
    check(program.rom(), tmp_path)


@pytest.mark.parametrize("lines", [285, 312, 313])
def test_colour_loss_of_pal(lines, tmp_path):
    """On PAL, all colors get bit 0 after an odd number of lines; on NTSC, none does."""
    check(start(PF1=0xF0).rom(lines), tmp_path)


def test_frames_end_without_vsync(tmp_path):
    """A write after line 290 ends the frame."""
    rom = start(PF1=0xF0).rom().replace(bytes([0xA9, 2, 0x85, 0]), bytes([0xA9, 0, 0x85, 0]))
    check(rom, tmp_path, frames=4)


def test_short_vsync_does_not_end_the_frame(tmp_path):
    program = start(PF1=0xF0).lines(20).write("VSYNC", 2).wait(40).write("VSYNC", 0).lines(20)
    check(program.write("VSYNC", 2).wait(66).write("VSYNC", 0).write("COLUBK", 0x12).rom(), tmp_path)


def test_painting_changes_nothing_but_pixels(tmp_path):
    rom = random_program(5).rom()
    ale = open_ale(rom, tmp_path, GAME)
    ale.reset_game()
    screen, ended = np.zeros((2, 320, 160), np.uint8), []
    for paint in (0, 1):
        s = console_in(save_state(ale), prepare(rom))
        s[words.PAINT] = paint
        for _ in range(3):
            run_frame(s, prepare(rom), screen)
        ended.append(s.copy())
        assert screen.any() == paint
    differing = set(np.flatnonzero((ended[0] != ended[1])[: words.HISTORY]))
    assert differing <= {words.PAINT, words.REPEATED, words.PAINTED, words.PAINTED + 1}
