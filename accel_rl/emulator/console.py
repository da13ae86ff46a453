"""Emulates the console around the chips, as ale-py drives it: power on, reset, frames, actions.

A reset is a program: an array of steps that Python makes from a game's reset rules (`Program`), run by one loop.
"""

import numpy as np

from accel_rl.emulator.cartridges import KIND_F6SC, KIND_F8SC, cart_read, reset_cartridge
from accel_rl.emulator.compiled import address, entry, i32, jit
from accel_rl.emulator.controllers import center_controllers, set_action, set_switches
from accel_rl.emulator.frames import FRAME_ENDED, forget_frames, paint_last_frame, run_frame
from accel_rl.emulator.mt19937 import draw, seed_generator
from accel_rl.emulator.riot import reset_riot
from accel_rl.emulator.rule_code import reset_rules, update_rules
from accel_rl.emulator.state import (
    ACTION_GENERATOR,
    CARTRIDGE,
    CARTRIDGE_RAM,
    CYCLES,
    DATA_BUS,
    EPISODE_FRAME,
    FRAME,
    LAST_ACCESS_WAS_READ,
    LAST_ACTION,
    LEFT_OVER,
    MAX_EPISODE_FRAMES,
    MAX_LINE,
    PAINT,
    PAL,
    PC,
    RAM,
    REPEAT_LIMIT,
    REPEATS,
    SP,
    STOP,
    SYSTEM_GENERATOR,
    TERMINAL,
    TRUNCATED,
    A,
    B,
)
from accel_rl.emulator.tia import reset_tia

u32 = np.uint32
SYSTEM_SEED = 4753849  # ale-py's `system_random_seed`
NTSC_MAX_LINE, PAL_MAX_LINE = 290, 342
_DETECTION_FRAMES = 60
_PAL_LINES = 286  # a frame of at least that many lines is a PAL one

# A step of a reset: [operation, three arguments]
STEP_WORDS = 4
PLAY = 0  # [action, switches pressed, frames]: counted frames, whose rules are evaluated
PRESS = 1  # [action, switches pressed, frames]: frames that ale-py does not count
JUMP_UNLESS = 2  # [index in RAM | mask << 8, value, steps to jump]: jumps unless RAM & mask equals the value
_MAX_STEPS = 20_000  # a reset that takes longer has failed: the game does not react to its switches


@jit
def power_on(s, rom, screen, action_seed, system_seed):
    """Switches the console on for the first time; its settings are in s, all other words are 0.

    RAM is random, and the television's standard is found by running a second of frames."""
    seed_generator(s, ACTION_GENERATOR, action_seed)
    seed_generator(s, SYSTEM_GENERATOR, system_seed)
    for byte in range(128):
        s[RAM + byte] = i32(draw(s, SYSTEM_GENERATOR) & u32(0xFF))
    draw(s, SYSTEM_GENERATOR)  # ale-py sets the timer when it makes the RIOT, too
    s[MAX_LINE] = NTSC_MAX_LINE
    s[PAL] = 0
    center_controllers(s)
    _reset_chips(s, rom, screen)
    set_action(s, 0)
    set_switches(s, 0)
    s[PAINT] = 0
    long_frames = 0
    for frame in range(_DETECTION_FRAMES):
        run_frame(s, rom, screen)
        lines = (3 * s[CYCLES] + s[LEFT_OVER]) // 228
        if 2 * frame >= _DETECTION_FRAMES and s[STOP] == FRAME_ENDED and lines >= _PAL_LINES:
            long_frames += 1
    if 4 * long_frames >= _DETECTION_FRAMES:
        s[MAX_LINE] = PAL_MAX_LINE
        s[PAL] = 1
    _reset_chips(s, rom, screen)


@jit
def reset_game(s, rom, screen, rules, program):
    """Starts a new game; program: int32[steps, 4], from `reset_program`. Returns 0, or 1 if the game never got ready.

    Nothing is random but the timer and what the game before has left in RAM."""
    _reset_chips(s, rom, screen)
    center_controllers(s)
    s[EPISODE_FRAME] = 0
    s[TRUNCATED] = 0
    s[LAST_ACTION] = 0
    s[PAINT] = 0
    reset_rules(s, rules)
    step = 0
    for _ in range(_MAX_STEPS):
        if step >= program.shape[0]:
            return 0
        operation, first, second, third = program[step, 0], program[step, 1], program[step, 2], program[step, 3]
        step += 1
        if operation == JUMP_UNLESS:
            if s[RAM + (first & 0x7F)] & first >> 8 != second:
                step += third
            continue
        for _ in range(third):
            set_switches(s, second)
            if operation == PLAY:
                _play(s, rom, screen, rules, first)
            else:
                set_action(s, first)
                run_frame(s, rom, screen)
    return 1


@jit
def act(s, rom, screen, rules, action):
    """Plays one frame, painted if s[PAINT] is set; a sticky action is the last one. Does nothing after a game's end."""
    repeats = draw(s, ACTION_GENERATOR) <= u32(s[REPEAT_LIMIT]) and s[REPEATS]
    draw(s, ACTION_GENERATOR)  # for a second player, who does nothing
    if not repeats:
        s[LAST_ACTION] = action
    if s[TERMINAL] or s[TRUNCATED]:
        return
    set_switches(s, 0)
    _play(s, rom, screen, rules, s[LAST_ACTION])


@jit
def _play(s, rom, screen, rules, action):
    set_action(s, action)
    run_frame(s, rom, screen)
    s[FRAME] += 1
    s[EPISODE_FRAME] += 1
    s[TRUNCATED] = i32(0 < s[MAX_EPISODE_FRAMES] <= s[EPISODE_FRAME])
    update_rules(s, rules)


@jit
def _reset_chips(s, rom, screen):
    """Pulls the reset line: RAM keeps its bytes, that of a cartridge does not."""
    reset_riot(s, i32(25 + draw(s, SYSTEM_GENERATOR) % u32(75)))
    if s[CARTRIDGE] == KIND_F8SC or s[CARTRIDGE] == KIND_F6SC:
        for byte in range(128):
            s[CARTRIDGE_RAM + byte] = i32(draw(s, SYSTEM_GENERATOR) & u32(0xFF))
    reset_cartridge(s)
    reset_tia(s)
    forget_frames(s, screen)
    for register in range(A, STOP + 1):
        s[register] = 0
    s[SP] = 0xFF
    s[B] = 1
    s[LAST_ACCESS_WAS_READ] = 1
    low = cart_read(s, rom, 0x1FFC)
    high = cart_read(s, rom, 0x1FFD)
    s[DATA_BUS] = high
    s[PC] = i32(low | high << 8)


POWER_ON, RESET, ACT, PAINT_LAST_FRAME = range(4)


@entry
def command(s, rom, screen, rules, program, order, first, second):
    """Gives the console one order from Python: POWER_ON (seeds of actions and system), RESET, ACT (action) or
    PAINT_LAST_FRAME. One function, so that the processor is compiled once."""
    s, rom, screen = address(s), address(rom), address(screen)
    if order == POWER_ON:
        power_on(s, rom, screen, first, second)
    elif order == RESET:
        return reset_game(s, rom, screen, rules, program)
    elif order == ACT:
        act(s, rom, screen, rules, first)
    elif order == PAINT_LAST_FRAME:
        paint_last_frame(s, rom, screen)
    return 0
