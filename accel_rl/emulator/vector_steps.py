"""Steps and starts games as ale-py's AtariVectorEnv does. Its rules were determined by experiments.

* A start is a reset, FIRE for one frame if a game has that action, and no-ops, FIRE included. If the game is over by
  then, it is reset and the remaining no-ops follow.
* A step's frames end early with the game, at the limit of frames, or with a life if lives are episodes. Frames of a
  start do not count towards the limit.
* A step shows the maximum of its last two frames, but never a frame that ends the game. Instead it repeats what the
  previous step showed; if only its last frame is missing, it shows the maximum of that and its last frame but one.
"""

from accel_rl.emulator.compiled import address, i32, jit
from accel_rl.emulator.console import DONE, NO_LIMIT, begin_action, begin_reset, run_due_frames
from accel_rl.emulator.frame_making import CHANNELS, COLOURS, HEIGHT, LINES, WIDTH, make_frame
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import AGENT_LIVES, AGENT_STEPS, EPISODE_FRAME, FRAME, LIVES, PAINT, REWARD, TERMINAL
from accel_rl.emulator.steps import NO_PICTURE, PICTURE, keep_picture, newest_picture

# Options, an array of int32
FRAME_SKIP = 0
MAX_POOL = 1  # 0 or 1
FIRE_RESET = 2  # 0 or 1
EPISODIC_LIFE = 3  # 0 or 1: a lost life ends the game
LIFE_LOSS_INFO = 4  # 0 or 1: a lost life counts as an end, but the game continues
CLIP_REWARD = 5  # 0 or 1
MAX_FRAMES = 6
SAME_STEP = 7  # 0 or 1: the next game starts in the step that ends one
STACK = 8
OPTION_WORDS = 9

# The events of a step, one bit each
TERMINATED, TRUNCATED = 1, 2
ENDED = 4  # the next game has not been started
STARTED = 8  # a game has been started
FAILED = 16  # a game was not ready within its reset

# Columns of `numbers`, int32 [n, NUMBERS], which Python reads; it writes the no-ops of the next start
NOOPS, SHOWN_LIVES, SHOWN_FRAME, SHOWN_EPISODE_FRAME, NUMBERS = range(5)


@jit
def step_or_start(
    starts, s, rom, screen, rules, program, options, action, palette, maker, memory, frame, observations, rewards,
    numbers, env
):  # fmt: skip
    """Plays a step, or starts a game if `starts` is set; returns the events as bits.

    palette: of the colors, then an identity. frame: scratch memory for a frame. observations: the environment's frames,
    oldest first, channels last, uint8 [2 * stack * height * width * channels]; then the last ones of the previous game,
    if the next game starts in the same step."""
    rewards[env] = 0
    plain = address(palette)
    events = i32(0)
    size = i32(maker[CHANNELS] * maker[HEIGHT] * maker[WIDTH])
    if not starts:
        reward, before, events = play(s, rom, screen, rules, program, options, action)
        rewards[env] = i32((reward > 0) - (reward < 0)) if options[CLIP_REWARD] else reward
        _shift(observations, options[STACK], size)
        newest = i32((options[STACK] - 1) * size)
        if not events & ENDED:
            picture = newest_picture(s, rom, screen)
            make_frame(screen, picture, before, plain, maker, memory, frame)
            _put_frame(frame, maker, observations, newest)
        elif before != NO_PICTURE:
            shown = address(palette[COLOURS * maker[CHANNELS] :])
            _put_maximum_with_last(screen, before, plain, shown, maker, memory, frame, observations, newest)
        # else the newest frame is shown again
        if options[SAME_STEP] and events & (TERMINATED | TRUNCATED):
            for byte in range(options[STACK] * size):
                observations[options[STACK] * size + byte] = observations[byte]
            starts = events & ENDED
            events = i32(events & ~ENDED)
    if starts:
        events = i32(events | STARTED)
        if not _start(s, rom, screen, rules, program, options, numbers[env, NOOPS]):
            events = i32(events | FAILED)
        for byte in range((options[STACK] - 1) * size):
            observations[byte] = 0
        picture = newest_picture(s, rom, screen)
        make_frame(screen, picture, i32(NO_PICTURE), plain, maker, memory, frame)
        _put_frame(frame, maker, observations, i32((options[STACK] - 1) * size))
    numbers[env, SHOWN_LIVES] = s[LIVES]
    numbers[env, SHOWN_FRAME] = s[FRAME]
    numbers[env, SHOWN_EPISODE_FRAME] = s[EPISODE_FRAME]
    return events


@jit
def play(s, rom, screen, rules, program, options, action):
    """Plays a step's frames. Returns their reward, the offset of the last picture but one if the step shows it, and the
    events as bits."""
    reward, before, events = i32(0), i32(NO_PICTURE), i32(0)
    skip = options[FRAME_SKIP]
    for frame in range(skip):
        s[PAINT] = i32(frame == skip - 1 or (frame == skip - 2 and options[MAX_POOL]))
        reward += _act(s, rom, screen, rules, program, action)
        s[AGENT_STEPS] += 1
        if s[TERMINAL] or (options[EPISODIC_LIFE] and s[LIVES] < s[AGENT_LIVES]):
            events = i32(TERMINATED | ENDED)
        elif s[AGENT_STEPS] >= options[MAX_FRAMES]:
            events = i32(TRUNCATED | ENDED)
        if events:
            break
        if frame == skip - 2 and options[MAX_POOL]:
            before = keep_picture(s, rom, screen)
    s[PAINT] = 0
    if options[LIFE_LOSS_INFO] and s[LIVES] < s[AGENT_LIVES]:
        events = i32(events | TERMINATED)
    s[AGENT_LIVES] = s[LIVES]
    return reward, before, events


@jit
def _start(s, rom, screen, rules, program, options, noops):
    """Starts a game; returns whether it was ready within its reset."""
    s[PAINT] = 0
    begin_reset(s, rom, screen)
    ready = run_due_frames(s, rom, screen, rules, program, i32(NO_LIMIT)) == DONE
    if options[FIRE_RESET]:
        _act(s, rom, screen, rules, program, i32(1))
        noops -= 1
    for _ in range(noops):
        _act(s, rom, screen, rules, program, i32(0))
        if s[TERMINAL]:
            begin_reset(s, rom, screen)
            ready = run_due_frames(s, rom, screen, rules, program, i32(NO_LIMIT)) == DONE and ready
    s[AGENT_LIVES] = s[LIVES]
    s[AGENT_STEPS] = 0
    return ready


@jit
def _act(s, rom, screen, rules, program, action):
    """Plays a frame; returns its reward."""
    begin_action(s, action)
    run_due_frames(s, rom, screen, rules, program, i32(NO_LIMIT))
    return s[REWARD]


@jit
def _shift(observations, stack, size):
    """Moves each frame one place towards the oldest."""
    for byte in range((stack - 1) * size):
        observations[byte] = observations[byte + size]


@jit
def _put_frame(frame, maker, observations, at):
    """Writes a frame [channels, height, width] as [height, width, channels]."""
    for channel in range(maker[CHANNELS]):
        _put_channel(frame, maker, channel, observations, at)


@jit
def _put_channel(frame, maker, channel, observations, at):
    channels, pixels = maker[CHANNELS], maker[HEIGHT] * maker[WIDTH]
    for pixel in range(pixels):
        observations[at + channels * pixel + channel] = frame[channel * pixels + pixel]


@jit
def _put_maximum_with_last(screen, before, palette, shown, maker, memory, frame, observations, at):
    """Writes the frame of the maximum of a picture and the last frame's screen, which make_frame remembers.

    The game is over, so the maximum of each channel may overwrite a picture. before: the offset of the picture."""
    channels, size = maker[CHANNELS], LINE_PIXELS * maker[LINES]
    last = i32(COLOURS * channels + 2 * size)
    for pixel in range(size):
        colour = screen[before + pixel]
        for channel in range(channels):
            value = palette[COLOURS * channel + colour]
            screen[PICTURE * channel + pixel] = max(value, memory[last + size * channel + pixel])
    for channel in range(channels):
        make_frame(screen, i32(PICTURE * channel), i32(NO_PICTURE), shown, maker, memory, frame)
        _put_channel(frame, maker, channel, observations, at)
