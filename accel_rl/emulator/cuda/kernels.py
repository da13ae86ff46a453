"""The kernels' bodies: what one thread does. On a CPU, an entry called for each thread in turn does the same."""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.console import NO_LIMIT, begin_action, run_due_frames
from accel_rl.emulator.cuda.memory import console_state, constant_address, global_address, kernel
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
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import FRAME_BUFFER, FRAME_GOES_ON, PAINT, REWARD
from accel_rl.emulator.steps import KEPT_PICTURE, NO_PICTURE, PICTURE


@kernel
def play_frames(
    thread, num_envs, num_frames, num_painted, actions, states, rom, screens, rules, program, rewards, pictures
):  # fmt: skip
    """Plays frames with one action in the console `thread`; paints the last ones, at most two.

    actions: int32 [n], ale-py's numbers. states: see console_state. screens: uint8 [n, 3 * PICTURE]. rewards: int32
    [n], summed. pictures: int32 [n, 2]: where the last picture and the one before begin in the console's screens; -1:
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
    """Returns the offset of the last frame's picture, which has been painted, while the next frame runs."""
    start = i32(PICTURE * s[FRAME_BUFFER])
    if not s[FRAME_GOES_ON]:
        return start
    for pixel in range(PICTURE):
        screen[KEPT_PICTURE + pixel] = screen[start + pixel]
    return i32(KEPT_PICTURE)


@kernel
def make_pictures(thread, num_envs, screens, pictures, palette, maker, frames):
    """Makes one pixel of one console's frame, grey, as frame_making.py makes it: thread = console * pixels + pixel.

    pictures: int32 [n, 2], from play_frames. palette: uint8 [256]. maker: see FramePlan. frames: uint8 [n, pixels]."""
    pixels = i32(maker[HEIGHT] * maker[WIDTH])
    console = i32(thread // pixels)
    if console >= num_envs:
        return
    pixel = i32(thread - console * pixels)
    row = i32(pixel // maker[WIDTH])
    column = i32(pixel - row * maker[WIDTH])
    screen, colours, plan = constant_address(screens[console]), constant_address(palette), constant_address(maker)
    newest, before = pictures[console, 0], pictures[console, 1]
    if before < 0:
        before = newest
    at = i32(LINE_PIXELS * plan[plan[FIRST_LINES] + row] + plan[plan[FIRST_COLUMNS] + column])
    line_weights = i32(plan[LINE_WEIGHTS] + plan[LINE_TAPS] * row)
    column_weights = i32(plan[COLUMN_WEIGHTS] + plan[COLUMN_TAPS] * column)
    weighted = i32(0)
    for line in range(plan[LINE_TAPS]):
        in_line = i32(0)
        for tap in range(plan[COLUMN_TAPS]):
            weight = plan[column_weights + tap]
            if weight:
                place = i32(at + LINE_PIXELS * line + tap)
                in_line += i32(weight * max(i32(colours[screen[newest + place]]), i32(colours[screen[before + place]])))
        weighted += i32(plan[line_weights + line] * in_line)
    total = i32(plan[LINE_TOTAL] * plan[COLUMN_TOTAL])
    mean = i32((2 * weighted + total) // i32(2 * total))
    rest = i32(2 * weighted + total - 2 * total * mean)
    if min(rest, i32(2 * total - rest)) <= plan[NEAR]:
        mean = _mean_as_cv2(
            screen, newest + at, before + at, colours, plan, line_weights, column_weights, weighted
        )
    frames[console, pixel] = mean


@jit
def _mean_as_cv2(screen, newest, before, colours, plan, line_weights, column_weights, weighted):
    """Returns the mean in float32, rounded to the nearest integer, halves to even; see frame_making._mean_as_cv2."""
    mean = f32(0)
    if plan[IS_WHOLE]:
        mean = f32(weighted) * (f32(1) / f32(plan[LINE_TOTAL] * plan[COLUMN_TOTAL]))
    else:
        for line in range(plan[LINE_TAPS]):
            in_line = f32(0)
            for tap in range(plan[COLUMN_TAPS]):
                weight = f32(plan[column_weights + tap]) / f32(plan[COLUMN_TOTAL])
                place = i32(LINE_PIXELS * line + tap)
                value = max(i32(colours[screen[newest + place]]), i32(colours[screen[before + place]]))
                in_line += f32(value) * weight
            mean += f32(plan[line_weights + line]) / f32(plan[LINE_TOTAL]) * in_line
    whole = i32(mean)
    part = mean - f32(whole)
    return i32(whole + (part > f32(0.5) or (part == f32(0.5) and whole & 1)))
