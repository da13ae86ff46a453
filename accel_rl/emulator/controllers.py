"""Turns actions into the signals at the console's ports: joysticks, paddles, the panel's switches.

Ports and bits: Stella Programmer's Guide, "Hand controllers" and "Console switches". A closed contact reads 0.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import (
    DIFFICULTY,
    INPT4,
    INPT5,
    LEFT_PADDLE,
    PADDLE,
    PADDLE_MAX,
    PADDLES,
    RIGHT_PADDLE,
    SWAPPED_PORTS,
    SWCHA,
    SWCHB,
)

NUM_ACTIONS = 18
ACTION_BITS = 5  # enough for numbers below NUM_ACTIONS
_UP, _DOWN, _LEFT, _RIGHT = 0x10, 0x20, 0x40, 0x80  # the left joystick's bits in SWCHA
_DIRECTIONS = (
    *(0, 0, _UP, _RIGHT, _LEFT, _DOWN, _UP | _RIGHT, _UP | _LEFT, _DOWN | _RIGHT, _DOWN | _LEFT),
    *(_UP, _RIGHT, _LEFT, _DOWN, _UP | _RIGHT, _UP | _LEFT, _DOWN | _RIGHT, _DOWN | _LEFT),
)
DIRECTIONS = np.array(_DIRECTIONS, np.int32)  # closed contacts by action, in ale-py's order
FIRE_ACTIONS = 1 << 1 | 0xFF << 10  # one bit for each action

RESET_SWITCH, SELECT_SWITCH = 0x01, 0x02
_COLOUR_AND_UNUSED_BITS = 0x3F  # nothing pressed, a color television
PADDLE_MIN = 27450  # ohms
PADDLE_STEP = 23000  # ohms per frame


@jit
def set_switches(s, pressed):
    """Sets the panel's switches; pressed: RESET_SWITCH, SELECT_SWITCH or 0."""
    s[SWCHB] = i32(_COLOUR_AND_UNUSED_BITS & ~pressed | s[DIFFICULTY] << 6)


@jit
def set_action(s, action):
    """Moves the player's controller.

    action: 0..17, in ale-py's order. The bits from ACTION_BITS on shorten a paddle's PADDLE_STEP, in ohms."""
    paddle_step = i32(PADDLE_STEP - (action >> ACTION_BITS))
    action = i32(action & (1 << ACTION_BITS) - 1)
    directions = DIRECTIONS[action]
    fire = FIRE_ACTIONS >> action & 1
    s[INPT4] = 0x80
    s[INPT5] = 0x80
    if s[PADDLES]:
        if directions & _LEFT:
            s[LEFT_PADDLE] = min(i32(s[LEFT_PADDLE] + paddle_step), s[PADDLE_MAX])
        if directions & _RIGHT:
            s[LEFT_PADDLE] = max(i32(s[LEFT_PADDLE] - paddle_step), PADDLE_MIN)
        s[PADDLE + s[SWAPPED_PORTS]] = cycles_to_charge(s[LEFT_PADDLE])
        s[PADDLE + (s[SWAPPED_PORTS] ^ 1)] = cycles_to_charge(s[RIGHT_PADDLE])
        s[SWCHA] = i32(0xFF & ~(fire << (7 - s[SWAPPED_PORTS])))
    elif s[SWAPPED_PORTS]:
        s[SWCHA] = i32(0xFF & ~(directions >> 4))
        s[INPT5] = i32(0x80 & ~(fire << 7))
    else:
        s[SWCHA] = i32(0xFF & ~directions)
        s[INPT4] = i32(0x80 & ~(fire << 7))


@jit
def center_controllers(s):
    """Centers the paddles.

    Paddles in the right port keep the resistance 0, and a joystick's pins never charge."""
    middle = i32((PADDLE_MIN + s[PADDLE_MAX]) // 2)
    s[LEFT_PADDLE] = middle
    s[RIGHT_PADDLE] = middle
    for socket in range(4):
        s[PADDLE + socket] = i32(0 if s[PADDLES] == 2 else -1)


@jit
def cycles_to_charge(ohms):
    """Returns how long a paddle's capacitor takes to charge: 1.6 R C, with C = 10 nF, in cycles of 1.19 MHz."""
    return i32(ohms * 119 // 6250)
