"""Emulates the console around the chips, as ale-py drives it: power on, reset, frames, actions.

`power_on`, `begin_reset` and `begin_action` decide which frames are due, and `run_due_frames` runs them. It has the
only loop over frames, so the processor is compiled once. A reset is a program: an array of steps that Python builds
from the game's section of games.ini.
"""

import numpy as np

from accel_rl.emulator.cartridges import KIND_F6SC, KIND_F8SC, cart_read, reset_cartridge
from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.controllers import RESET_SWITCH, center_controllers, set_action, set_switches
from accel_rl.emulator.frame_running import forget_frames, run_frame
from accel_rl.emulator.mt19937 import draw, seed_generator
from accel_rl.emulator.registers import CLOCKS_PER_LINE
from accel_rl.emulator.riot import reset_riot
from accel_rl.emulator.rule_code import reset_rules, update_rules
from accel_rl.emulator.state import (
    ACTION,
    ACTION_GENERATOR,
    CARTRIDGE,
    CARTRIDGE_RAM,
    CYCLES,
    DATA_BUS,
    EPISODE_FRAME,
    FRAME,
    FRAMES_DUE,
    INSTRUCTIONS_LEFT,
    LAST_ACCESS_WAS_READ,
    LAST_ACTION,
    LEFT_OVER,
    LONG_FRAMES,
    MAX_EPISODE_FRAMES,
    MAX_LINE,
    NUM_LINES,
    OPERATION,
    PAL,
    PC,
    RAM,
    REPEAT_LIMIT,
    REPEATS,
    REWARD,
    SP,
    STEP,
    STOP,
    SWITCHES,
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
PAL_NUM_LINES = 250
_DETECTION_FRAMES = 60
_PAL_LINES = 286  # a frame with at least this many lines is a PAL frame

# A step of a reset: [operation, three arguments]
STEP_WORDS = 4
PRESS = 0  # [action, switches pressed, frames]: frames that ale-py does not count
PLAY = 1  # [action, switches pressed, frames]: frames that ale-py counts
JUMP_UNLESS = 2  # [word | mask << 12, value, steps to jump]: jumps unless s[RAM + word] & mask equals the value
RESET_RULES = 3  # [mode]: resets the rules' variables
STICKY_PLAY = 4  # [action, switches pressed, frames]: like PLAY, but the last action may repeat (sticky)
RANDOM_PRESS = 5  # [action, switches pressed, frames]: like PRESS, for 0 to 255 more frames
_DETECT = 6  # frames that reveal the television's standard
_NO_STEP = 2**30
NO_LIMIT = 2**31 - 1  # a number of instructions that no frame reaches
DONE, FAILED, STOPPED = range(3)
_MAX_FRAMES = 20_000  # a reset that takes longer has failed: the game does not react to its switches


@jit
def power_on(s, rom, screen, action_seed, system_seed):
    """Switches the console on for the first time. Its settings must be in s, with all other words 0.

    RAM is random. Then frames are due, whose numbers of lines reveal the television's standard; call `begin_reset`
    after them."""
    seed_generator(s, ACTION_GENERATOR, action_seed)
    seed_generator(s, SYSTEM_GENERATOR, system_seed)
    for byte in range(128):
        s[RAM + byte] = i32(draw(s, SYSTEM_GENERATOR) & u32(0xFF))
    draw(s, SYSTEM_GENERATOR)  # ale-py also sets the timer when it creates the RIOT
    s[MAX_LINE] = NTSC_MAX_LINE
    s[PAL] = 0
    center_controllers(s)
    _reset_chips(s, rom, screen)
    s[LONG_FRAMES] = 0
    _set_step(s, _NO_STEP, _DETECT, 0, 0, _DETECTION_FRAMES)


@jit
def begin_reset(s, rom, screen):
    """Starts a new game: the frames of the game's reset program are due.

    The timer, a cartridge's RAM and, in some games, the time that Select is pressed are random. The other RAM keeps the
    last game's contents."""
    if s[OPERATION] == _DETECT:
        _set_standard(s)
        _reset_chips(s, rom, screen)
    _reset_chips(s, rom, screen)
    center_controllers(s)
    s[EPISODE_FRAME] = 0
    s[TRUNCATED] = 0
    _set_step(s, 0, PRESS, 0, 0, 0)


@jit
def begin_action(s, action):
    """Sets the player's action (0..17), or randomly repeats the last one; a frame is due.

    When the game is over, no frame is due and the reward is 0."""
    s[REWARD] = 0
    _set_step(s, _NO_STEP, STICKY_PLAY, action, 0, 1)
    if s[TERMINAL] or s[TRUNCATED]:
        s[FRAMES_DUE] = 0
        _sticky_action(s, action)  # ale-py also draws here


@jit
def run_due_frames(s, rom, screen, rules, program, max_instructions):
    """Runs the frames that are due, each for at most max_instructions; the next call continues.

    rules: the game's code for update_rules. program: int32[steps, 4]. Frames are painted if s[PAINT] is set. Returns
    DONE, STOPPED, or FAILED if a reset does not finish."""
    for _ in range(_MAX_FRAMES):
        if not s[INSTRUCTIONS_LEFT]:
            if not _next_frame(s, rules, program):
                return DONE
            set_switches(s, s[SWITCHES])
            set_action(s, _sticky_action(s, s[ACTION]) if s[OPERATION] == STICKY_PLAY else s[ACTION])
        if not run_frame(s, rom, screen, i32(0), max_instructions):
            return STOPPED
        s[FRAMES_DUE] -= 1
        if s[OPERATION] == _DETECT:
            _count_long_frame(s)
            continue
        if s[OPERATION] != PRESS:
            s[FRAME] += 1
            s[EPISODE_FRAME] += 1
            s[TRUNCATED] = i32(0 < s[MAX_EPISODE_FRAMES] <= s[EPISODE_FRAME])
        update_rules(s, rules)
    return FAILED


@jit
def _next_frame(s, rules, program):
    """Executes the program until a frame is due; returns False at the program's end."""
    for _ in range(_MAX_FRAMES):
        if s[FRAMES_DUE] > 0 or s[STEP] >= program.shape[0]:
            break
        step = s[STEP]
        operation, first, second, third = program[step, 0], program[step, 1], program[step, 2], program[step, 3]
        if operation == JUMP_UNLESS:
            s[STEP] = i32(step + 1 if s[RAM + (first & 0xFFF)] & first >> 12 == second else step + 1 + third)
        elif operation == RESET_RULES:
            reset_rules(s, rules, first)
            s[STEP] = i32(step + 1)
        elif operation == RANDOM_PRESS:
            more = i32(draw(s, ACTION_GENERATOR) & u32(0xFF))
            _set_step(s, step + 1, PRESS, first, second, third + more)
        else:
            _set_step(s, step + 1, operation, first, second, third)
            if second == RESET_SWITCH:
                s[LAST_ACTION] = 0
    return s[FRAMES_DUE] > 0


@jit
def _sticky_action(s, action):
    """Returns the action, or randomly the last one."""
    repeats = draw(s, ACTION_GENERATOR) <= u32(s[REPEAT_LIMIT]) and s[REPEATS]
    draw(s, ACTION_GENERATOR)  # for a second player, who never acts
    if not repeats:
        s[LAST_ACTION] = action
    return s[LAST_ACTION]


@jit
def _set_step(s, following, operation, action, switches, frames):
    s[STEP] = following
    s[OPERATION] = operation
    s[ACTION] = action
    s[SWITCHES] = switches
    s[FRAMES_DUE] = frames


@jit
def _count_long_frame(s):
    lines = (3 * s[CYCLES] + s[LEFT_OVER]) // CLOCKS_PER_LINE
    if 2 * s[FRAMES_DUE] < _DETECTION_FRAMES and lines >= _PAL_LINES:
        s[LONG_FRAMES] += 1


@jit
def _set_standard(s):
    """Chooses PAL if half of the last 30 frames were long, NTSC otherwise."""
    if 4 * s[LONG_FRAMES] >= _DETECTION_FRAMES:
        s[MAX_LINE] = PAL_MAX_LINE
        s[NUM_LINES] = max(s[NUM_LINES], PAL_NUM_LINES)
        s[PAL] = 1


@jit
def _reset_chips(s, rom, screen):
    """Resets the chips. RAM keeps its bytes; a cartridge's RAM does not."""
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
    low = cart_read(s, rom, i32(0xFFFC))
    high = cart_read(s, rom, i32(0xFFFD))
    s[DATA_BUS] = high
    s[PC] = i32(low | high << 8)
