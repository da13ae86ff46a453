"""The presses of a reset: the words of games.ini, and real games in their modes, compared with ale-py."""

from dataclasses import replace

import numpy as np
import pytest
from ale_py import roms as ale_roms

from accel_rl.emulator import state
from accel_rl.emulator.console import JUMP_UNLESS, PLAY, PRESS, RANDOM_PRESS, RESET_RULES, STICKY_PLAY
from accel_rl.emulator.resets import reset_program
from accel_rl.emulator.rules import game_of, known_games
from tests.emulator.consoles import Console, differences
from tests.emulator.roms import start_ale

BEFORE = [(PRESS, 0, 0, 60), (PRESS, 0, 1, 4), (RESET_RULES, 0, 0, 0)]
AFTER = [(PRESS, 0, 1, 4)]
CARTRIDGE_BYTE = state.CARTRIDGE_RAM - state.RAM


def steps_of(mode: int = 0, **texts: str) -> list[tuple[int, ...]]:
    """Returns the steps of an invented game's reset."""
    rules = replace(game_of("boxing"), modes=(0, 1, 2, 3), **texts)
    return [tuple(step) for step in reset_program(rules, mode).tolist()]


def test_words() -> None:
    """Each word of games.ini stands for its presses, with the right count and stickiness."""
    assert steps_of() == BEFORE + AFTER
    steps = steps_of(set_mode="reset*4; wait play-up*3; select*random", starting_actions="noop*9 upfire")
    between = [(PRESS, 0, 1, 4), (PLAY, 0, 0, 1), (STICKY_PLAY, 2, 0, 3), (RANDOM_PRESS, 0, 2, 2)]
    assert steps == [*BEFORE, *between, *AFTER, (PRESS, 0, 0, 9), (PRESS, 10, 0, 1)]


@pytest.mark.parametrize(
    ("test", "mode", "passing", "failing"),
    [
        ("0x83", 2, [{3: 2}], [{}, {3: 3}, {4: 2}]),
        ("0x83 & 0x0C = 0 4 8", 1, [{3: 4}, {3: 0xF7}], [{}, {3: 8}, {3: 12}]),
        ("0x83 & 0x0C = 0 4", 3, [{3: 4}], [{}, {3: 8}]),
        ("0x83 = 1 5-7 and 0x84 = 9", 3, [{3: 7, 4: 9}], [{3: 7}, {4: 9}, {3: 6, 4: 9}]),
        ("0x83 or 0x84 = 7*2 8*2", 2, [{3: 2}, {4: 8}, {3: 2, 4: 8}], [{}, {3: 8}, {4: 2}, {4: 7}]),
        ("0x1083 = any*2 6", 1, [{}], []),
        ("0x1083 = any*2 6", 2, [{CARTRIDGE_BYTE + 3: 6}], [{}, {3: 6}]),
    ],
)
def test_a_loop_ends_when_its_test_passes(test, mode, passing, failing):
    """A loop ends when its test passes for the mode's number, and otherwise jumps back to its start."""
    steps = steps_of(mode, set_mode=f"until {test}: select*3 wait; reset*2", starting_actions="fire")
    for memory in passing:
        assert _pressed(steps, memory) == [(PRESS, 0, 1, 2), *AFTER, (PRESS, 1, 0, 1)]
    for memory in failing:
        assert _pressed(steps, memory) == 2 * [(PRESS, 0, 2, 3), (PLAY, 0, 0, 1)]


def _pressed(steps, memory):
    """Returns up to four presses after the first Reset, with memory that never changes."""
    pressed, at = [], len(BEFORE)
    while at < len(steps) and len(pressed) < 4:
        operation, word, value, jump = steps[at]
        at += 1
        if operation != JUMP_UNLESS:
            pressed.append(steps[at - 1])
        elif memory.get(word & 0xFFF, 0) & word >> 12 != value:
            at += jump
    return pressed


def test_a_misspelt_test_is_an_error() -> None:
    """A misspelt test in the table raises an error that names the game."""
    with pytest.raises(ValueError, match="boxing"):
        steps_of(set_mode="until 0x83 == 1: select")


def _check_modes(game, modes, frames, rng):
    """Resets a game into one mode after another, with frames of play in between."""
    rules, path = game_of(game), ale_roms.get_rom_path(game)
    ale = start_ale(path, seed=3, repeat_action_probability=0.25)
    plugged = {"PADDLES": rules.paddles, "PADDLE_MAX": rules.paddle_max, "SWAPPED_PORTS": rules.swapped_ports}
    picture = {"NUM_LINES": rules.height, "FIRST_LINE": rules.first_line, "COMB": rules.comb}
    first = reset_program(rules, rules.modes[0])
    ours = Console(path.read_bytes(), first, 3, 0.25, rules.code, **plugged, **picture)
    assert differences(ours, ale) == {}
    actions = ale.getLegalActionSet()
    for mode in modes:
        difficulty = int(rng.choice(rules.difficulties))
        ale.setMode(mode)
        ale.setDifficulty(difficulty)
        ale.reset_game()
        ours.s[state.DIFFICULTY] = difficulty
        ours.reset(reset_program(rules, mode))
        assert differences(ours, ale) == {}, (mode, difficulty)
        for action in rng.choice(len(actions), frames):
            if ale.game_over():
                break
            ale.act(actions[action])
            ours.act(actions[action].value)
        assert differences(ours, ale) == {}, (mode, difficulty)


@pytest.mark.parametrize(
    ("game", "modes"),
    [
        ("adventure", (2, 0, 1)),  # random numbers of frames
        ("double_dunk", (5, 10)),  # a menu
        ("klax", (2, 1)),  # a test of the cartridge's RAM
        ("ms_pacman", (3, 0)),  # two bytes
        ("video_cube", (1102,)),  # a second loop
    ],
)
def test_modes_of_games(game, modes):
    """Resets into the modes of difficult games equal ale-py's, including their random numbers."""
    _check_modes(game, modes, 10, np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("game", known_games())
def test_all_modes_of_all_games(game):
    """Resets into all modes of all games equal ale-py's, even with RAM left by play."""
    rng = np.random.default_rng(0)
    _check_modes(game, rng.permutation(game_of(game).modes), 40, rng)
