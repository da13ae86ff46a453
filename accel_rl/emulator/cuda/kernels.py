"""The kernels' bodies, each for one thread. On a CPU, an entry called for each thread in turn does the same."""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.console import NO_LIMIT, begin_action, run_due_frames
from accel_rl.emulator.cuda import frames  # noqa: F401 (what kernels call in place of cpu.run)
from accel_rl.emulator.cuda.memory import (
    BYTES,
    BYTES_2D,
    INT,
    INTS,
    INTS_2D,
    console_state,
    constant_address,
    global_address,
    kernel,
)
from accel_rl.emulator.cuda.warps import active_lanes, wait_for
from accel_rl.emulator.frame_making import (
    COLUMN_TAPS,
    COLUMN_TOTAL,
    COLUMN_WEIGHTS,
    FIRST_COLUMNS,
    FIRST_LINES,
    HEIGHT,
    IS_WHOLE,
    LINE_TAPS,
    LINE_TOTAL,
    LINE_WEIGHTS,
    NEAR,
    WIDTH,
    f32,
)
from accel_rl.emulator.pcg64 import draw_below
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import (
    ACTION_GENERATOR,
    AGENT_GENERATOR,
    FRAME_BUFFER,
    FRAME_GOES_ON,
    HISTORY,
    LIVES,
    PAINT,
    REWARD,
    RULES,
    STATE_WORDS,
)
from accel_rl.emulator.steps import KEPT_PICTURE, NO_PICTURE, PICTURE
from accel_rl.emulator.vector_steps import CLIP_REWARD, ENDED, STARTED, play


@kernel(INT, INT, INT, INTS, INTS, BYTES, BYTES_2D, INTS, INTS_2D, INTS, INTS_2D)
def play_frames(
    thread, num_envs, num_frames, num_painted, actions, states, rom, screens, rules, program, rewards, pictures
):  # fmt: skip
    """Plays frames with one action in the console `thread`; paints the last ones, at most two.

    actions: int32 [n], ale-py's numbers. states: see console_state. screens: uint8 [n, 3 * PICTURE]. rewards: int32
    [n], summed. pictures: int32 [n, 2]: offsets of the last picture and the one before in the console's screens; -1:
    there is none."""
    if thread >= num_envs:
        return
    s, screen = console_state(states, thread), global_address(screens[thread])
    reward, before = i32(0), i32(NO_PICTURE)
    lanes = active_lanes()
    for frame in range(num_frames):
        wait_for(lanes)
        s[PAINT] = i32(frame >= num_frames - num_painted)
        begin_action(s, actions[thread])
        run_due_frames(s, constant_address(rom), screen, constant_address(rules), program, i32(NO_LIMIT))
        reward += s[REWARD]
        if frame == num_frames - 2 and num_painted > 1:
            before = _keep_picture(s, screen)
    rewards[thread] = reward
    pictures[thread, 0] = PICTURE * s[FRAME_BUFFER]
    pictures[thread, 1] = before


@jit
def _keep_picture(s, screen):
    """Returns the offset of the last frame's picture, already painted, while the next frame runs."""
    start = i32(PICTURE * s[FRAME_BUFFER])
    if not s[FRAME_GOES_ON]:
        return start
    for pixel in range(PICTURE):
        screen[KEPT_PICTURE + pixel] = screen[start + pixel]
    return i32(KEPT_PICTURE)


@kernel(INT, INT, INTS, INTS, BYTES, BYTES_2D, INTS, INTS_2D, INTS, INT, INTS, INTS, INTS_2D, INTS, INTS)
def step_consoles(
    thread, num_envs, plays, actions, states, rom, screens, rules, program, options, num_starts, rewards, events,
    pictures, starts, lives
):  # fmt: skip
    """Plays a step in the console `thread`, or chooses one of num_starts starts if its game has ended.

    plays: 0: choose starts only. actions: int32 [n], ale-py's numbers. options: see vector_steps.py. rewards, events,
    starts, lives: int32 [n]; starts: -1 without a start. pictures: int32 [n, 2], offsets in the console's screens: the
    picture to show and the one before it, -1 if a step does not show it (vector_steps.py says when)."""
    if thread >= num_envs:
        return
    s, screen = console_state(states, thread), global_address(screens[thread])
    rewards[thread] = 0
    starts[thread] = -1
    pictures[thread, 0] = pictures[thread, 1] = NO_PICTURE
    if events[thread] & ENDED:
        events[thread] = STARTED
        starts[thread] = draw_below(s, AGENT_GENERATOR, num_starts)
    elif plays:
        reward, before, ended = play(s, constant_address(rom), screen, constant_address(rules), program,
                                     constant_address(options), actions[thread])  # fmt: skip
        rewards[thread] = i32((reward > 0) - (reward < 0)) if options[CLIP_REWARD] else reward
        events[thread] = ended
        lives[thread] = s[LIVES]
        pictures[thread, 1] = before
        if not ended & ENDED:
            pictures[thread, 0] = PICTURE * s[FRAME_BUFFER]  # `play` has painted it


START_THREADS = 128  # threads for each console


@kernel(INT, INTS, INTS, INTS_2D, BYTES_2D, INTS_2D, INTS_2D, BYTES_2D, INTS)
def start_consoles(
    thread, num_envs, starts, states, screens, shown, start_states, start_screens, start_shown, lives
):  # fmt: skip
    """Copies a part of a prepared start, except generators, to the console thread // START_THREADS if it starts a game.

    starts: int32 [n], from step_consoles. start_states: int32 [starts, STATE_WORDS]. start_screens: int32 [starts,
    words]: the two pictures. shown, start_shown: see show_pictures."""
    console = i32(thread // START_THREADS)
    if console >= num_envs:
        return
    start = starts[console]
    if start < 0:
        return
    part = i32(thread - START_THREADS * console)
    s = console_state(states, console)
    for word in range(part, STATE_WORDS, START_THREADS):
        if not (AGENT_GENERATOR <= word < RULES or ACTION_GENERATOR <= word < HISTORY):
            s[word] = start_states[start, word]
    for word in range(part, start_screens.shape[1], START_THREADS):
        screens[console, word] = start_screens[start, word]
    for pixel in range(part, start_shown.shape[1], START_THREADS):
        shown[console, pixel] = start_shown[start, pixel]
    if part == 0:
        lives[console] = start_states[start, LIVES]


SHOWN_PIXELS = 2  # pixels per thread of show_pictures: a launch takes twice as many consoles as with one


@kernel(INT, BYTES_2D, INTS_2D, BYTES, BYTES_2D)
def show_pictures(thread, num_envs, screens, pictures, palette, shown):
    """Makes two pixels of the gray screen that a console's step shows: thread = console * pixels / 2 + pixel.

    pictures: int32 [n, 2], from step_consoles. Without the last one, the screen is the maximum of itself and the one
    before. palette: uint8 [256]. shown: uint8 [n, pixels]."""
    distance = i32(i32(shown.shape[1]) // SHOWN_PIXELS)
    console = i32(thread // distance)
    if console >= num_envs:
        return
    newest, before = pictures[console, 0], pictures[console, 1]
    if newest < 0 and before < 0:
        return
    pixel = i32(thread - console * distance)
    for _ in range(SHOWN_PIXELS):
        value = palette[screens[console, newest + pixel]] if newest >= 0 else shown[console, pixel]
        if before >= 0:
            value = max(value, palette[screens[console, before + pixel]])
        shown[console, pixel] = value
        pixel = i32(pixel + distance)


@kernel(INT, INT, INTS, BYTES_2D, INTS, INT, BYTES_2D)
def make_observations(thread, num_envs, plays, starts, shown, maker, stack, observations):
    """Makes a pixel of a console's frame and moves those of its older frames: thread = console * pixels + pixel.

    The frame is that of frame_making.py. maker: see FramePlan. observations: uint8 [n, stack * pixels], oldest first;
    older frames are black after a start."""
    pixels = i32(maker[HEIGHT] * maker[WIDTH])
    console = i32(thread // pixels)
    if console >= num_envs or (not plays and starts[console] < 0):
        return
    pixel = i32(thread - console * pixels)
    for frame in range(stack - 1):
        at = i32(pixels * frame + pixel)
        observations[console, at] = 0 if starts[console] >= 0 else observations[console, at + pixels]
    mean = _mean(constant_address(shown[console]), constant_address(maker), pixel)
    observations[console, pixels * (stack - 1) + pixel] = mean


@jit
def _mean(screen, plan, pixel):
    """Returns a pixel of the frame: the mean of some of the screen's pixels, rounded as in cv2."""
    row = i32(pixel // plan[WIDTH])
    column = i32(pixel - row * plan[WIDTH])
    at = i32(LINE_PIXELS * plan[plan[FIRST_LINES] + row] + plan[plan[FIRST_COLUMNS] + column])
    line_weights = i32(plan[LINE_WEIGHTS] + plan[LINE_TAPS] * row)
    column_weights = i32(plan[COLUMN_WEIGHTS] + plan[COLUMN_TAPS] * column)
    weighted = i32(0)
    for line in range(plan[LINE_TAPS]):
        in_line = i32(0)
        for tap in range(plan[COLUMN_TAPS]):
            in_line += i32(plan[column_weights + tap] * i32(screen[at + LINE_PIXELS * line + tap]))
        weighted += i32(plan[line_weights + line] * in_line)
    total = i32(plan[LINE_TOTAL] * plan[COLUMN_TOTAL])
    mean = i32((2 * weighted + total) // i32(2 * total))
    rest = i32(2 * weighted + total - 2 * total * mean)
    if min(rest, i32(2 * total - rest)) <= plan[NEAR]:
        mean = _mean_as_cv2(screen, at, plan, line_weights, column_weights, weighted)
    return mean


@jit
def _mean_as_cv2(screen, at, plan, line_weights, column_weights, weighted):
    """Returns the mean in float32, rounded to the nearest integer, halves to even; see frame_making._mean_as_cv2."""
    mean = f32(0)
    if plan[IS_WHOLE]:
        mean = f32(weighted) * (f32(1) / f32(plan[LINE_TOTAL] * plan[COLUMN_TOTAL]))
    else:
        for line in range(plan[LINE_TAPS]):
            in_line = f32(0)
            for tap in range(plan[COLUMN_TAPS]):
                weight = f32(plan[column_weights + tap]) / f32(plan[COLUMN_TOTAL])
                in_line += f32(screen[at + LINE_PIXELS * line + tap]) * weight
            mean += f32(plan[line_weights + line]) / f32(plan[LINE_TOTAL]) * in_line
    whole = i32(mean)
    part = mean - f32(whole)
    return i32(whole + (part > f32(0.5) or (part == f32(0.5) and whole & 1)))


KERNELS = (play_frames, step_consoles, start_consoles, show_pictures, make_observations)


def most_threads_each(lines: int, frame_pixels: int) -> int:
    """Returns the largest number of threads that a launch has for each console.

    lines: of a screen. frame_pixels: pixels of a resized frame."""
    return max(LINE_PIXELS * lines // SHOWN_PIXELS, frame_pixels, START_THREADS)
