"""Runs frames, and paints those that are looked at.

Frames run without painting, which saves a third of the time. The two pictures take turns: if a frame ends before the
last displayed line, its picture still shows lines of the frame before the last. A frame can be painted later: the
starts of the last three frames are kept, and the frame runs again from its start.

* The last frame is painted on request.
* If a frame is shorter than the one that its picture held, the older one is painted first, once.
* A frame that has used up its instructions is shown before its end, and continues in the next call. Its first part is
  painted when its instructions are used up, the rest immediately.
"""

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.cpu import run
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import CLOCKS_PER_LINE, LINE_PIXELS
from accel_rl.emulator.state import (
    CARTRIDGE_RAM,
    DRAWN_CLOCK,
    DRAWN_END,
    FIRST_LINE,
    FRAME_BUFFER,
    FRAME_GOES_ON,
    HISTORY,
    INSTRUCTIONS,
    INSTRUCTIONS_LEFT,
    MASK,
    MUSIC_CYCLE,
    NUM_LINES,
    PAINT,
    PAINTED,
    RAM,
    SLOT,
    STATE_WORDS,
    STOP,
    TIMER,
)
from accel_rl.emulator.tia import PAINT_EAGERLY, end_frame, start_frame

MAX_INSTRUCTIONS = 25_000  # ale-py's limit per frame
FRAME_ENDED = 1  # a value of s[STOP]

# A frame's start holds the ports and everything that the processor and the chips can change. RAM is packed, two bytes
# in a word; other words are copied.
_CPU_WORDS = INSTRUCTIONS + 1
_PORT_WORDS = CARTRIDGE_RAM - TIMER  # timer, ports, cartridge
_TIA_WORDS = MASK + 30 - MUSIC_CYCLE
_RAM_WORDS = 128 // 2
SLOT_WORDS = _CPU_WORDS + _PORT_WORDS + _TIA_WORDS + 2 * _RAM_WORDS
assert HISTORY + 3 * SLOT_WORDS <= STATE_WORDS


@jit
def run_frame(s, rom, screen, repaint, max_instructions):
    """Runs one frame as ale-py counts frames: until the TIA ends it or 25,000 instructions are used up.

    Stops after max_instructions; the next call continues. Returns whether the frame is over. It is painted at once if
    s[PAINT] is set. With repaint = 1, no new frame runs, and the last one is painted unless it already was."""
    wanted = s[PAINT]
    picture = s[FRAME_BUFFER]
    free_slot = i32((s[SLOT] + 1) % 3)
    on_demand = repaint
    if on_demand:
        if s[INSTRUCTIONS_LEFT] or s[FRAME_GOES_ON] or s[PAINTED + picture] or s[DRAWN_END + picture] == 0:
            return True
        _save_start(s, free_slot)
    elif not s[INSTRUCTIONS_LEFT]:
        s[INSTRUCTIONS_LEFT] = MAX_INSTRUCTIONS
        if not s[FRAME_GOES_ON]:
            start_frame(s)
            picture = s[FRAME_BUFFER]
            s[SLOT] = free_slot
            _save_start(s, free_slot)
    if s[FRAME_GOES_ON]:
        s[PAINT] = PAINT_EAGERLY

    # repaint: frames to run again and paint. 1: the last one; 2: the one before it, then the last.
    while True:
        instructions = i32(min(s[INSTRUCTIONS_LEFT], max_instructions))
        if repaint:
            instructions = i32(MAX_INSTRUCTIONS)
            _load_start(s, i32((s[SLOT] + repaint - 1) % 3))
            s[PAINT] = PAINT_EAGERLY
        before = s[INSTRUCTIONS]
        run(s, rom, screen, instructions)
        if s[STOP] == FRAME_ENDED:
            end_frame(s, screen)
        if repaint:
            repaint = i32(repaint - 1)
        else:
            s[INSTRUCTIONS_LEFT] -= i32(s[INSTRUCTIONS] - before)
            if not s[STOP] and s[INSTRUCTIONS_LEFT] > 0:
                s[PAINT] = wanted
                return False
            s[INSTRUCTIONS_LEFT] = 0
            if _displayed(s) < s[DRAWN_END + picture] and not s[PAINTED + picture]:
                repaint = i32(2)
            elif s[STOP] != FRAME_ENDED and s[PAINT] != PAINT_EAGERLY:
                repaint = i32(1)
        if repaint == 0:
            break

    s[PAINTED + picture] = i32(s[PAINT] != 0)
    if on_demand:
        _load_start(s, free_slot)
    else:
        s[FRAME_GOES_ON] = i32(s[STOP] != FRAME_ENDED)
        if not s[FRAME_GOES_ON]:
            s[DRAWN_END + picture] = _displayed(s)
    s[PAINT] = wanted
    return True


@jit
def _displayed(s):
    """Returns the clock at which the displayed part of the last frame ends."""
    return min(s[DRAWN_CLOCK], i32(CLOCKS_PER_LINE * (s[FIRST_LINE] + s[NUM_LINES])))


@jit
def forget_frames(s, screen):
    """Makes both pictures black, as they are at power on."""
    for picture in range(2):
        s[DRAWN_END + picture] = 0
        s[PAINTED + picture] = 0
    for pixel in range(2 * PICTURE_LINES * LINE_PIXELS):
        screen[pixel] = 0
    s[FRAME_GOES_ON] = 0
    s[INSTRUCTIONS_LEFT] = 0


@jit
def _save_start(s, slot):
    at = i32(HISTORY + SLOT_WORDS * slot)
    for word in range(_CPU_WORDS):
        s[at + word] = s[word]
    at += _CPU_WORDS
    for word in range(_PORT_WORDS):
        s[at + word] = s[TIMER + word]
    at += _PORT_WORDS
    for word in range(_TIA_WORDS):
        s[at + word] = s[MUSIC_CYCLE + word]
    at += _TIA_WORDS
    for word in range(_RAM_WORDS):
        s[at + word] = s[RAM + 2 * word] | s[RAM + 2 * word + 1] << 16
        s[at + _RAM_WORDS + word] = s[CARTRIDGE_RAM + 2 * word] | s[CARTRIDGE_RAM + 2 * word + 1] << 16


@jit
def _load_start(s, slot):
    at = i32(HISTORY + SLOT_WORDS * slot)
    for word in range(_CPU_WORDS):
        s[word] = s[at + word]
    at += _CPU_WORDS
    for word in range(_PORT_WORDS):
        s[TIMER + word] = s[at + word]
    at += _PORT_WORDS
    for word in range(_TIA_WORDS):
        s[MUSIC_CYCLE + word] = s[at + word]
    at += _TIA_WORDS
    for word in range(_RAM_WORDS):
        s[RAM + 2 * word] = s[at + word] & 0xFFFF
        s[RAM + 2 * word + 1] = s[at + word] >> 16 & 0xFFFF
        s[CARTRIDGE_RAM + 2 * word] = s[at + _RAM_WORDS + word] & 0xFFFF
        s[CARTRIDGE_RAM + 2 * word + 1] = s[at + _RAM_WORDS + word] >> 16 & 0xFFFF
