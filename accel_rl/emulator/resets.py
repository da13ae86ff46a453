"""Builds the reset program of each game and mode; console.py executes its steps.

ale-py waits, presses Reset, sets the mode, presses Reset again and plays the game's starting actions. games.ini has the
differences between games:

* `select_until = 0x81` with `select = 10`: presses Select for ten frames (two by default), again and again until this
  byte is the mode. Short for `set_mode = until 0x81: select*10 wait; reset*4`.
* `set_mode`: steps and loops `until TEST: steps`, separated by semicolons. A loop whose test holds at once is skipped.
* `starting_actions`: steps.

Steps are words with numbers of frames, as in `noop*60 fire`: actions and the switches `reset` and `select`. `wait` is a
frame that counts for the episode. An action after `play-` also counts, and may be sticky, like a player's.
`select*random` takes 2 to 257 frames.

The test `0x81` passes if the byte is the mode. `0xDD & 0x06 = 0 2 4` passes if the masked bits equal the mode's number;
if there are more modes than numbers, these repeat. `9*3` is 9 9 9, and `any` always passes. `and` joins tests to
groups, and `or` joins groups. Addresses are the processor's: RAM is at 0x80, a cartridge's RAM is read at 0x1080.
"""

import re

import numpy as np

from accel_rl.emulator.console import JUMP_UNLESS, PLAY, PRESS, RANDOM_PRESS, RESET_RULES, STEP_WORDS, STICKY_PLAY
from accel_rl.emulator.controllers import RESET_SWITCH, SELECT_SWITCH
from accel_rl.emulator.rules import ACTIONS, GameRules
from accel_rl.emulator.state import CARTRIDGE_RAM, RAM

Step = tuple[int, int, int, int]

_WORDS = {
    **{name: (PRESS, action, 0) for action, name in enumerate(ACTIONS)},
    **{f"play-{name}": (STICKY_PLAY, action, 0) for action, name in enumerate(ACTIONS)},
    "reset": (PRESS, 0, RESET_SWITCH),
    "select": (PRESS, 0, SELECT_SWITCH),
    "wait": (PLAY, 0, 0),
}


def reset_program(rules: GameRules, mode: int) -> np.ndarray:
    """Returns the program of a game's reset, int32[steps, 4]; mode is one of rules.modes."""
    program = [*_steps("noop*60 reset*4"), (RESET_RULES, mode, 0, 0)]
    for part in filter(None, rules.set_mode.split(";")):
        until, _, steps = part.rpartition(":")
        program += _loop(until.replace("until", ""), _steps(steps), rules, mode) if until else _steps(steps)
    program += _steps(f"reset*4 {rules.starting_actions}")
    return np.array(program, np.int32).reshape(-1, STEP_WORDS)


def _steps(text: str) -> list[Step]:
    words = (word.partition("*") for word in text.split())
    return [
        (RANDOM_PRESS, *_WORDS[name][1:], 2) if frames == "random" else (*_WORDS[name], int(frames or 1))
        for name, _, frames in words
    ]


def _loop(tests: str, steps: list[Step], rules: GameRules, mode: int) -> list[Step]:
    """Returns a loop that repeats steps until a group of tests passes."""
    groups = [[_test(test, rules, mode) for test in group.split(" and ")] for group in tests.split(" or ")]
    length = sum(len(group) + 1 for group in groups) + len(steps) + 1
    loop: list[Step] = []
    for group in groups:
        following = len(loop) + len(group) + 1
        for byte, value in group:
            loop.append((JUMP_UNLESS, byte, value, following - len(loop) - 1))
        loop.append(_jump(length - following))
    return [*loop, *steps, _jump(-length)]


def _jump(steps: int) -> Step:
    return JUMP_UNLESS, 0, 1, steps  # always jumps, since a byte masked with 0 is never 1


def _test(text: str, rules: GameRules, mode: int) -> tuple[int, int]:
    """Returns the first two arguments of JUMP_UNLESS."""
    match = re.fullmatch(r"\s*(0x\w+)(?: & (0x\w+))?(?: = ([\w*\- ]+))?\s*", text)
    if not match:
        raise ValueError(f"games.ini, {rules.name}: {text!r} is no test of a byte")
    address, mask = int(match[1], 16), int(match[2] or "0xFF", 16)
    values = _values(match[3] or str(mode))
    value = values[rules.modes.index(mode) % len(values)]
    word = (CARTRIDGE_RAM - RAM if address >= 0x1000 else 0) + (address & 0x7F)
    return (word, 0) if value is None else (word | mask << 12, value)


def _values(text: str) -> list[int | None]:
    """Reads `1*6 2-9*3 any`."""
    values: list[int | None] = []
    for word in text.split():
        numbers, _, times = word.partition("*")
        first, _, last = numbers.partition("-")
        each = [None] if first == "any" else range(int(first), int(last or first) + 1)
        values += [value for value in each for _ in range(int(times or 1))]
    return values
