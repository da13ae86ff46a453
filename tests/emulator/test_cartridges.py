"""Cartridges against ale-py's: the kind of each ROM, bank switching, RAM on cartridges, the DPC."""

import random

import pytest
from ale_py import roms as ale_roms

from accel_rl.emulator.cartridges import KINDS, identify
from accel_rl.errors import UsageError
from tests.emulator.machine import Lab

# One game of each kind. Games that are not named here are 2K, 4K or F8.
GAMES = {"2K": "freeway", "4K": "seaquest", "F8": "hero", "F8SC": "elevator_action", "F6": "solaris", "F6SC": "klax"}
GAMES |= {"E0": "montezuma_revenge", "FE": "robotank", "DPC": "pitfall2"}
OTHERS = {"F6": ("crossbow", "double_dunk", "road_runner"), "F6SC": ("darkchambers",), "E0": ("jamesbond", "tutankham")}


def rom_of(game: str) -> bytes:
    return ale_roms.get_rom_path(game).read_bytes()


def test_kinds_of_all_games():
    """Each game's cartridge is identified as the kind that ale-py finds."""
    kinds = {game: kind for kind, game in GAMES.items()}
    kinds |= {game: kind for kind, games in OTHERS.items() for game in games}
    for game in ale_roms.get_all_rom_ids():
        rom = rom_of(game)
        expected = kinds.get(game, {2048: "2K", 4096: "4K", 8192: "F8"}.get(len(rom)))
        assert identify(rom) == expected, game


@pytest.mark.parametrize("size", [0, 1024, 6000, 12288, 32768])
def test_a_size_that_no_kind_has(size):
    with pytest.raises(UsageError, match=f"no cartridge of {size} bytes is supported"):
        identify(bytes(size))


@pytest.mark.parametrize("kind", KINDS)
def test_accesses_anywhere(kind, tmp_path):
    """Reads and writes anywhere on a cartridge of any kind have the same effect as in ale-py."""
    lab, rng = Lab(rom_of(GAMES[kind]), tmp_path, GAMES[kind]), random.Random(kind)
    assert lab.start.cartridge == kind
    for _ in range(40):
        source = ""
        if kind == "E0":  # ale-py restores the numbers of the slices, but not their contents
            source = "".join(f" LDA $1F{0xE0 + 8 * slot + rng.randrange(8):02X}\n" for slot in range(3))
        for place in range(0xF0, 0xF6):
            near = rng.choice((range(0x1000), range(0x100), range(0x80), range(0xFE0, 0x1000)))
            address = rng.choice(near) | rng.choice((0x1000, 0x3000, 0xD000, 0xF000))
            source += f" {rng.choice(('LDA', 'LDA', 'STA', 'INC'))} ${address:04X}\n STA ${place:02X}\n"
        changes = {name: rng.randrange(256) for name in ("A", "RANDOM") if name in lab.start}
        if "BANK" in lab.start:
            changes["BANK"] = rng.randrange(len(lab.rom) // 4096)
        assert lab.run_in_ram(source, **changes) == {}, (source, changes)


def test_display_data_and_music_of_the_dpc(tmp_path):
    """The DPC's flags, counters and tones equal ale-py's, with data fetchers in any state."""
    lab, rng = Lab(rom_of("pitfall2"), tmp_path, "pitfall2"), random.Random(0)
    for _ in range(100):
        source = ""
        for place in range(0xF0, 0xF7):
            register = rng.choice((rng.randrange(0x40), rng.randrange(8), rng.randrange(0x40, 0x80)))
            source += f" {'LDA' if register < 0x40 else 'STA'} $10{register:02X}\n STA ${place:02X}\n"
        changes = {}
        for i in range(8):
            top, bottom = rng.randrange(256), rng.randrange(256)
            low = rng.choice((top, bottom, top + 1, bottom + 1, rng.randrange(256))) & 0xFF
            changes |= {f"TOP{i}": top, f"BOTTOM{i}": bottom, f"COUNTER{i}": rng.randrange(8) << 8 | low}
            changes[f"FLAG{i}"] = rng.choice((0, 0xFF))
        changes |= {f"IS_MUSIC{i}": rng.randrange(2) for i in (5, 6, 7)}
        changes["MUSIC_CYCLE"] = lab.start["CYCLES"] - rng.randrange(3_000)
        assert lab.run_in_ram(source, **changes) == {}, (source, changes)
