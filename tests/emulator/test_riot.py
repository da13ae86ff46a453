"""The RIOT against ale-py's: timers around and after their end, ports, and mirrored addresses."""

import random

import pytest

from tests.emulator.machine import PROGRAM, Lab
from tests.emulator.roms import assemble


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(assemble(PROGRAM), tmp_path_factory.mktemp("rom"))


def delay(cycles: int) -> str:
    """Returns a program that takes that many cycles, at least 2."""
    return " NOP\n" * (cycles // 2 - cycles % 2) + (" STA $2D\n" if cycles % 2 else "")


@pytest.mark.parametrize("timer", ["TIM1T", "TIM8T", "TIM64T", "T1024T"])
def test_timers_set_by_a_program(lab, timer):
    """A timer counts as in ale-py around its end and after it, whether it is read or not."""
    rng = random.Random(timer)
    for _ in range(40):
        value = rng.choice((0, 1, 2, 3, rng.randrange(256)))
        source = f" LDA #{value}\n STA {timer}\n"
        for place in range(0xF0, 0xF0 + 6):
            register = rng.choice(("INTIM", "INTIM", "INSTAT", "$28E", "$2C7"))
            source += delay(rng.randrange(2, 16)) + f" LDA {register}\n STA ${place:02X}\n"
        assert lab.run_in_ram(source) == {}, source


def test_timers_at_any_time(lab):
    """Timers in any state, even long after their end, read as in ale-py."""
    rng = random.Random(0)
    for _ in range(150):
        shift = rng.choice((0, 3, 6, 10))
        timer = rng.choice((0, 1, 255, rng.randrange(256)))
        source = ""
        for place in range(0xF0, 0xF4):
            source += f" LDA {rng.choice(('INTIM', 'INSTAT'))}\n STA ${place:02X}\n" + delay(rng.randrange(2, 30))
        ending = timer << shift
        now = lab.start["CYCLES"]
        late = max(-ending, rng.choice((rng.randrange(-9, 9), rng.randrange(-ending - 1, 1), rng.randrange(40_000))))
        changes = {"TIMER": timer, "TIMER_SHIFT": shift, "TIMER_SET_CYCLE": now - ending - late}
        if late > 2 and rng.randrange(2):  # it has been read since
            changes["TIMER_READ_AFTER_INTERRUPT"] = 1
            changes["TIMER_INTERRUPT_CYCLE"] = now - rng.randrange(late - 2)
        assert lab.run_in_ram(source, **changes) == {}, (source, changes)


def test_ports_and_mirrors(lab):
    """Reads and writes all over the RIOT's addresses have the same effect as in ale-py."""
    rng = random.Random(0)
    for case in range(150):
        source = f" LDA #{rng.randrange(256)}\n"
        for place in range(0xF0, 0xF6):
            address = rng.randrange(0x1000) | 0x80 | rng.choice((0, 0x200, 0x200))  # RAM or not
            source += f" {rng.choice(('LDA', 'STA', 'INC'))}.w ${address:04X}\n STA ${place:02X}\n"
        assert lab.run_in_ram(source) == {}, (case, source)
