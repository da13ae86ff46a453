"""Builds what a reset does in each game and mode: a program of steps that console.py executes.

ale-py waits, presses Reset, presses Select until the RAM shows the wanted mode, presses Reset again and ends with the
game's starting actions. What differs from game to game is in games.ini:

* `select_until = 0x81`: Select is pressed until this byte is the mode; without this line a game has one mode only.
  `0xDD & 0x06: 0 2 4` compares masked bits with one number for each mode (or with one for all modes); a comma means
  "and", a bar "or".
* `select = 10`: how many frames Select is down, 2 if not given; `random` is 2 to 257 frames, and a player's no-op.
* `before_select`, `starting_actions`: steps as `noop*60 fire`: actions or switches, each with a number of frames.
  `wait` is a frame that counts for the episode, and `play` is a player's no-op, which may be a sticky action.
"""

import re

import numpy as np

from accel_rl.emulator.console import JUMP_UNLESS, PLAY, PRESS, RANDOM_PRESS, RESET_RULES, STEP_WORDS, STICKY_PLAY
from accel_rl.emulator.controllers import RESET_SWITCH, SELECT_SWITCH
from accel_rl.emulator.rules import ACTIONS, GameRules, read_numbers

Step = tuple[int, int, int, int]

_WORDS = {
    **{name: (PRESS, action, 0) for action, name in enumerate(ACTIONS)},
    "reset": (PRESS, 0, RESET_SWITCH),
    "select": (PRESS, 0, SELECT_SWITCH),
    "wait": (PLAY, 0, 0),
    "play": (STICKY_PLAY, 0, 0),
}


def reset_program(rules: GameRules, mode: int) -> np.ndarray:
    """Returns the program of a game's reset, int32[steps, 4]; mode is one of rules.modes."""
    program = [*_steps("noop*60 reset*4"), (RESET_RULES, mode, 0, 0), *_steps(rules.before_select)]
    if rules.select_until:
        if rules.select == "random":
            press = [(RANDOM_PRESS, 0, SELECT_SWITCH, 2), *_steps("wait play")]
        else:
            press = _steps(f"select*{rules.select} wait")
        program += [*_press_until(rules, mode, press), *_steps("reset*4")]
    program += _steps(f"reset*4 {rules.starting_actions}")
    return np.array(program, np.int32).reshape(-1, STEP_WORDS)


def _steps(text: str) -> list[Step]:
    words = (word.partition("*") for word in text.split())
    return [(*_WORDS[name], int(frames or 1)) for name, _, frames in words]


def _press_until(rules: GameRules, mode: int, press: list[Step]) -> list[Step]:
    """Presses until all tests of one alternative hold; a failed test jumps to the next alternative or to the press."""
    alternatives = [
        [_test(test, rules.modes, mode) for test in alternative.split(",")]
        for alternative in rules.select_until.split("|")
    ]
    loop: list[Step] = []
    length = sum(len(tests) + 1 for tests in alternatives) + len(press) + 1
    for tests in alternatives:
        following = len(loop) + len(tests) + 1
        loop += [(JUMP_UNLESS, byte, value, following - len(loop) - i - 1) for i, (byte, value) in enumerate(tests)]
        loop.append(_jump(length - following))
    return [*loop, *press, _jump(-length)]


def _jump(steps: int) -> Step:
    return JUMP_UNLESS, 0, 1, steps  # no bit of a byte is ever 1


def _test(text: str, modes: tuple[int, ...], mode: int) -> tuple[int, int]:
    """Reads `0xDD & 0x06: 0 2 4`; returns the first two arguments of JUMP_UNLESS."""
    match = re.fullmatch(r"\s*(0x\w+)(?: & (0x\w+))?(?:: ([\d -]+))?\s*", text)
    assert match, f"games.ini: {text!r} is no test of a byte"
    address, mask, values = int(match[1], 16), int(match[2] or "0xFF", 16), read_numbers(match[3] or "")
    value = mode if not values else values[0] if len(values) == 1 else values[modes.index(mode)]
    return address & 0x7F | mask << 8, value
