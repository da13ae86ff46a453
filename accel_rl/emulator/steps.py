"""Plays a game as an agent sees it. A step is several frames with one action; a start has no-ops and button presses.

The rules are those of envs/games/atari.py, which plays on ale-py, with the same random numbers in the same order.
"""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.console import DONE, NO_LIMIT, begin_action, begin_reset, run_due_frames
from accel_rl.emulator.frame_making import make_frame
from accel_rl.emulator.frame_running import run_frame
from accel_rl.emulator.pcg64 import draw_53, draw_below, u64
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import (
    AGENT_GENERATOR,
    AGENT_LIVES,
    AGENT_STEPS,
    FRAME_BUFFER,
    FRAME_GOES_ON,
    LIVES,
    NUM_STARTS,
    PAINT,
    PRESSED,
    REWARD,
    TERMINAL,
)

# Options, an array of int32
FRAME_SKIP = 0
NOOP_MAX = 1
EPISODIC_LIVES = 2  # 0 or 1
CLIP_REWARD = 3  # 0 or 1
MAX_STEPS = 4
STICKY = 5  # 2 words, lower half first: 53-bit draws below this number repeat the last action
NUM_PRESSES = 7
PRESSES = 8  # up to 3 actions, one frame each, that start a game or a life
NUM_ACTIONS = 11
ACTIONS = 12  # up to 18 actions; an agent chooses them by index
OPTION_WORDS = 30

# The events of a step, one bit each
TERMINATED, TRUNCATED, GAME_OVER = 1, 2, 4
LIFE_ENDED = 8  # the frame is the next life's first; the ended life's true last frame is stored separately
BAD_ACTION = 16  # the action does not exist: nothing happened

PICTURE = PICTURE_LINES * LINE_PIXELS
NO_PICTURE = -1
KEPT_PICTURE = 2 * PICTURE  # a third place: a copy of a picture that the next frame continues


@jit
def play_step(s, rom, screen, rules, program, options, action, palette, maker, memory, frame, last_frame):
    """Plays a step; action: an index. Writes the frame. If the step has ended a life and lives are episodes, it also
    writes that episode's true last frame.

    Returns the score, the learner's reward and the events as bits."""
    if action < 0 or action >= options[NUM_ACTIONS]:
        return i32(0), i32(0), i32(BAD_ACTION)
    score, before = _play_frames(s, rom, screen, rules, program, options, options[ACTIONS + action])
    newest = newest_picture(s, rom, screen)
    ended = _judge_step(s, options)
    reward = i32((score > 0) - (score < 0)) if options[CLIP_REWARD] else score
    starts_episode = ended & LIFE_ENDED and ended & TERMINATED
    make_frame(screen, newest, before, palette, maker, memory, last_frame if starts_episode else frame)
    if ended & LIFE_ENDED:
        score += _press_start(s, rom, screen, rules, program, options)
        s[AGENT_LIVES] = s[LIVES]
        if s[TERMINAL]:  # the presses can also end a game
            ended = i32(ended | TERMINATED | GAME_OVER)
        if starts_episode:  # a maximum with the picture before would mix two episodes
            newest = newest_picture(s, rom, screen)
            make_frame(screen, newest, i32(NO_PICTURE), palette, maker, memory, frame)
        else:
            ended = i32(ended & ~LIFE_ENDED)
    return score, reward, ended


@jit
def _play_frames(s, rom, screen, rules, program, options, press):
    """Plays a step's frames; returns their reward, and the offset of the picture before the newest one."""
    reward, before = i32(0), i32(NO_PICTURE)
    frame_skip = options[FRAME_SKIP]
    for frame in range(frame_skip):
        s[PAINT] = i32(frame >= frame_skip - 2)
        reward += _act(s, rom, screen, rules, program, options, press)
        if frame == frame_skip - 2:
            before = keep_picture(s, rom, screen)
    s[PAINT] = 0
    s[AGENT_STEPS] += 1
    return reward, before


@jit
def _judge_step(s, options):
    """Returns, as bits, which ends the step's frames reached. LIFE_ENDED: the next life has not started yet."""
    life_lost = 0 < s[LIVES] < s[AGENT_LIVES]
    s[AGENT_LIVES] = s[LIVES]  # also after a bonus life, whose loss then counts
    ended = i32(0)
    if s[TERMINAL]:
        ended = i32(TERMINATED | GAME_OVER)
    elif s[AGENT_STEPS] >= options[MAX_STEPS]:
        ended = i32(GAME_OVER | (TERMINATED if life_lost and options[EPISODIC_LIVES] else TRUNCATED))
    elif life_lost:
        ended = i32(LIFE_ENDED | (TERMINATED if options[EPISODIC_LIVES] else 0))
    return ended


@jit
def start_game(s, rom, screen, rules, program, options, noops):
    """Resets the game, presses its buttons and plays no-ops, a random number if noops < 0.

    Returns whether the game was ready within its reset."""
    if noops < 0:
        noops = draw_below(s, AGENT_GENERATOR, i32(options[NOOP_MAX] + 1))
    s[PRESSED] = 0
    s[PAINT] = 0
    for _ in range(2):
        begin_reset(s, rom, screen)
        if run_due_frames(s, rom, screen, rules, program, i32(NO_LIMIT)) != DONE:
            return False
        _press_start(s, rom, screen, rules, program, options)
        for _ in range(noops):
            _act(s, rom, screen, rules, program, options, i32(0))
        if not s[TERMINAL]:
            break
        noops = i32(0)  # no-ops can lose this game
    s[AGENT_LIVES] = s[LIVES]
    s[AGENT_STEPS] = 0
    s[NUM_STARTS] += 1
    return True


@jit
def _press_start(s, rom, screen, rules, program, options):
    """Presses each button that starts a game or a life for one frame; returns the reward of these frames."""
    reward = i32(0)
    for press in range(options[NUM_PRESSES]):
        reward += _act(s, rom, screen, rules, program, options, options[PRESSES + press])
    return reward


@jit
def _act(s, rom, screen, rules, program, options, press):
    """Plays one frame, perhaps with the last frame's action (sticky actions); returns its reward."""
    limit = u64(u64(options[STICKY]) & u64(0xFFFFFFFF) | u64(options[STICKY + 1]) << u64(32))
    if limit == 0 or draw_53(s, AGENT_GENERATOR) >= limit:
        s[PRESSED] = press
    begin_action(s, s[PRESSED])
    run_due_frames(s, rom, screen, rules, program, i32(NO_LIMIT))
    return s[REWARD]


@jit
def newest_picture(s, rom, screen):
    """Paints the last frame unless it already was; returns the offset of its picture."""
    run_frame(s, rom, screen, i32(1), i32(0))
    return i32(PICTURE * s[FRAME_BUFFER])


@jit
def keep_picture(s, rom, screen):
    """Returns the offset of the last frame's picture while the next frame runs."""
    start = newest_picture(s, rom, screen)
    if not s[FRAME_GOES_ON]:
        return start
    for pixel in range(PICTURE):
        screen[KEPT_PICTURE + pixel] = screen[start + pixel]
    return i32(KEPT_PICTURE)
