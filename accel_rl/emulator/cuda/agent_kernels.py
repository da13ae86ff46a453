"""The kernels of an agent's games. They run the CPU's function in steps.py, which has the rules of a step.

A step launches play_agents; show_pictures and make_frames for each channel of the last frames and of the newest ones;
choose_starts; copy_starts.
"""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.cuda.kernels import START_THREADS, _mean
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
from accel_rl.emulator.frame_making import HEIGHT, LINES, WIDTH, make_frame
from accel_rl.emulator.mt19937 import GENERATOR_WORDS
from accel_rl.emulator.pcg64 import GENERATOR_WORDS as AGENT_GENERATOR_WORDS
from accel_rl.emulator.pcg64 import draw_below
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import (
    ACTION_GENERATOR,
    AGENT_GENERATOR,
    FRAME_BUFFER,
    NUM_STARTS,
    STATE_WORDS,
    SYSTEM_GENERATOR,
)
from accel_rl.emulator.steps import GAME_OVER, KEPT_PICTURE, NO_PICTURE, NOOP_MAX, PICTURE, play_step

LAST_PICTURE = KEPT_PICTURE + PICTURE  # a fourth place in a console's screens: an ended life's last picture
SCORE, REWARD, EVENTS, START, RESULTS = range(5)  # rows of `results`, int32 [RESULTS, n]
NEWEST, BEFORE, COPIED, NOTES = range(4)  # columns of `pictures`, int32 [n, NOTES]


@jit
def note_pictures(_pictures, newest, before, _palette, maker, words, notes):
    """Replaces make_frame: notes which pictures a frame shows, from which other kernels make the frame.

    words: the console's screens as int32. notes: a row of `pictures`. If its COPIED is set, the pictures are copied,
    since the console will paint over them."""
    if notes[COPIED]:
        size = i32(LINE_PIXELS * maker[LINES] // 4)
        for word in range(size):
            words[KEPT_PICTURE // 4 + word] = words[before // 4 + word] if before >= 0 else words[newest // 4 + word]
        for word in range(size):
            words[LAST_PICTURE // 4 + word] = words[newest // 4 + word]
        newest, before = i32(LAST_PICTURE), i32(KEPT_PICTURE)
    notes[NEWEST], notes[BEFORE] = newest, before


make_frame.in_kernels = note_pictures


@kernel(INT, INTS, INTS, BYTES, BYTES_2D, INTS_2D, INTS, INTS_2D, INTS, INTS, INTS_2D, INTS_2D, INTS_2D)
def play_agents(
    thread, num_envs, actions, states, rom, screens, screen_words, rules, program, options, maker, results, pictures,
    last_pictures
):  # fmt: skip
    """Plays a step in the console `thread`; notes the pictures of its frame.

    actions: int32 [n], indices; an action that does not exist leaves its console unchanged. screen_words: `screens` as
    int32. options, results: see steps.play_step. last_pictures: those of the true last frame of a life that has ended
    as an episode, else NO_PICTURE."""
    if thread >= num_envs:
        return
    pictures[thread, NEWEST] = pictures[thread, BEFORE] = NO_PICTURE
    last_pictures[thread, NEWEST] = last_pictures[thread, BEFORE] = NO_PICTURE
    made_by = constant_address(maker)
    results[SCORE, thread], results[REWARD, thread], results[EVENTS, thread] = play_step(
        *(console_state(states, thread), constant_address(rom), global_address(screens[thread])),
        *(constant_address(rules), program, constant_address(options), actions[thread], made_by, made_by),
        *(global_address(screen_words[thread]), global_address(pictures[thread])),
        global_address(last_pictures[thread]),
    )


@kernel(INT, INT, INTS_2D, INTS_2D, BYTES_2D, INTS, BYTES_2D, BYTES_2D)
def make_frames(thread, num_envs, channel, pictures, last_pictures, shown, maker, frames, last_frames):
    """Makes a pixel of a channel of a console's frame: thread = console * pixels + pixel.

    It is also written to last_frames, unless the console has noted pictures for those. pictures: those of the frames to
    make; NO_PICTURE: none. shown: see show_pictures. frames, last_frames: uint8 [n, channels * pixels]."""
    pixels = i32(maker[HEIGHT] * maker[WIDTH])
    console = i32(thread // pixels)
    if console >= num_envs or pictures[console, NEWEST] < 0:
        return
    pixel = i32(thread - console * pixels)
    mean = _mean(constant_address(shown[console]), constant_address(maker), pixel)
    frames[console, pixels * channel + pixel] = mean
    if last_pictures[console, NEWEST] < 0:
        last_frames[console, pixels * channel + pixel] = mean


@kernel(INT, INT, INTS, INTS, INTS_2D)
def choose_starts(thread, num_envs, copies, options, states, results):
    """Chooses a prepared start for the console `thread` if its game is over, as NativeBatch.reset_one does; -1: none.

    copies: the number of starts with each number of no-ops."""
    if thread >= num_envs:
        return
    results[START, thread] = -1
    if results[EVENTS, thread] & GAME_OVER:
        s = console_state(states, thread)
        noops = draw_below(s, AGENT_GENERATOR, i32(options[NOOP_MAX] + 1))
        results[START, thread] = copies * noops + s[NUM_STARTS] % copies
        s[NUM_STARTS] += 1


@kernel(INT, INTS_2D, INTS, INTS_2D, BYTES_2D, BYTES_2D)
def copy_starts(thread, num_envs, results, states, start_states, start_frames, frames):
    """Copies a part of a chosen start to the console thread // START_THREADS, except generators and counts.

    start_states: int32 [starts, STATE_WORDS]. start_frames: uint8 [starts, bytes]."""
    console = i32(thread // START_THREADS)
    if console >= num_envs:
        return
    start = results[START, console]
    if start < 0:
        return
    part = i32(thread - START_THREADS * console)
    s = console_state(states, console)
    for word in range(part, STATE_WORDS, START_THREADS):
        is_generator = (
            SYSTEM_GENERATOR <= word < SYSTEM_GENERATOR + GENERATOR_WORDS
            or ACTION_GENERATOR <= word < ACTION_GENERATOR + GENERATOR_WORDS
            or AGENT_GENERATOR <= word < AGENT_GENERATOR + AGENT_GENERATOR_WORDS
        )
        if not (is_generator or word in (NUM_STARTS, FRAME_BUFFER)):
            s[word] = start_states[start, word]
    for pixel in range(part, start_frames.shape[1], START_THREADS):
        frames[console, pixel] = start_frames[start, pixel]


AGENT_KERNELS = (play_agents, make_frames, choose_starts, copy_starts)
