"""Makes a network's frames from an emulator's pictures: palette, maximum of two, area means.

The frames equal those of envs/games/frames.py, which cv2 makes (INTER_AREA), bit for bit. Each of the three steps is
repeated only where its input has changed since the environment's last call:

* Both pictures are compared with those of the last call, 8 pixels at a time.
* Changed pixels become gray values, or red, green and blue: the screen.
* A pixel of the frame is a mean of the screen. Lines and columns have integer weights: 2, 2, 1 of 5, and 21, 19 of 40
  for 84x84. The weighted sum of a row's lines is used for all pixels of that row.

cv2 sums in float32. If a mean is so close to a half that rounding errors decide, it is computed again as in cv2: by the
same operations in the same order. For means of 2x2 pixels, cv2 also adds integers, and rounds halves up.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.intrinsics import WORD, differing_words, local_ints
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import LINE_PIXELS

f32 = np.float32
Bytes = npt.NDArray[np.uint8]

WORDS = LINE_PIXELS // WORD
ALL_WORDS = 2**WORDS - 1
COLOURS = 256
MIN_TAPS = 3
MAX_CROPPED_ROWS = 8  # as in envs/games/frames.py

# The words of a maker, int32: settings, then tables.
LINES = 0  # lines of the screen that the frame shows
CHANNELS = 1
HEIGHT = 2  # the frame's height
WIDTH = 3
LINE_TAPS = 4  # lines of the screen per row of the frame
COLUMN_TAPS = 5  # columns of the screen per column of the frame: at least MIN_TAPS, some with weight 0
LINE_TOTAL = 6  # sum of the lines' weights
COLUMN_TOTAL = 7
NEAR = 8  # a mean closer to a half, in halves of a weight, is computed as in cv2; -1: never
IS_WHOLE = 9  # 1 if the frame's pixels are means of whole pixels with equal weights: cv2 adds integers
FIRST_LINES = 10  # from here on: offsets of the tables in the maker; this table is [HEIGHT]
LINE_WEIGHTS = 11  # [HEIGHT, LINE_TAPS]
FIRST_COLUMNS = 12  # [WIDTH]
COLUMN_WEIGHTS = 13  # [WIDTH, COLUMN_TAPS]
COLUMNS_FROM = 14  # [WORDS + 1]: the first column that this word or a later one contributes to
COLUMNS_BEFORE = 15  # [WORDS + 1]: the first column that no word before this one contributes to
SETTINGS = 16


@jit
def make_frame(pictures, newest, before, palette, maker, memory, frame):
    """Writes the frame of one picture, or of the pixel-wise maximum of two.

    pictures: uint8, palette indices. newest, before: offsets of the two pictures; before < 0: there is only one.
    palette: uint8 [channels * 256]. maker, memory: see FramePlan. frame: uint8 [channels * height * width]."""
    if before < 0:
        before = newest
    channels, height, width = maker[CHANNELS], maker[HEIGHT], maker[WIDTH]
    size = i32(LINE_PIXELS * maker[LINES])
    screen = i32(COLOURS * channels + 2 * size)
    last_frame = i32(screen + channels * size)
    changed = local_ints(PICTURE_LINES)  # one bit for each word of a line
    if _make_screen(pictures, newest, before, palette, maker, memory, changed):
        for row in range(height):
            line = maker[maker[FIRST_LINES] + row]
            words = i32(0)
            for tap in range(maker[LINE_TAPS]):
                words |= changed[line + tap]
            if words:
                for channel in range(channels):
                    source = screen + size * channel + LINE_PIXELS * line
                    _make_row(memory, source, last_frame + width * (height * channel + row), maker, row, words)
    for pixel in range(channels * height * width):
        frame[pixel] = memory[last_frame + pixel]


@jit
def _make_screen(pictures, newest, before, palette, maker, memory, changed):
    """Updates the screen where palette or pictures differ from the last call's, and marks these places in `changed`.
    Returns whether anything has changed."""
    channels, size = maker[CHANNELS], LINE_PIXELS * maker[LINES]
    old_newest = COLOURS * channels
    old_before, screen = old_newest + size, old_newest + 2 * size
    always = i32(0)
    for at in range(0, old_newest, 16 * WORD):
        if differing_words(memory, at, palette, at, 16):
            always = i32(ALL_WORDS)
    for colour in range(old_newest if always else 0):
        memory[colour] = palette[colour]
    any_changed = always
    for line in range(maker[LINES]):
        words = always | differing_words(pictures, newest, memory, old_newest, WORDS)
        words |= differing_words(pictures, before, memory, old_before, WORDS)
        changed[line] = words
        if words:
            any_changed |= words
            for pixel in range(LINE_PIXELS):
                memory[old_newest + pixel] = pictures[newest + pixel]
            for pixel in range(LINE_PIXELS):
                memory[old_before + pixel] = pictures[before + pixel]
            mixed = differing_words(pictures, newest, pictures, before, WORDS)
            for channel in range(channels):
                target = screen + size * channel
                for word in range(WORDS):
                    if words >> word & 1:
                        at, is_mixed = WORD * word, mixed >> word & 1
                        _show_word(pictures, newest + at, before + at, is_mixed, palette, channel, memory, target + at)
        newest += LINE_PIXELS
        before += LINE_PIXELS
        old_newest += LINE_PIXELS
        old_before += LINE_PIXELS
        screen += LINE_PIXELS
    return any_changed != 0


@jit
def _show_word(pictures, newest, before, is_mixed, palette, channel, memory, target):
    """Writes 8 pixels of one channel of the screen."""
    colours = COLOURS * channel
    for pixel in range(WORD):
        memory[target + pixel] = palette[colours + pictures[newest + pixel]]
    if is_mixed:
        for pixel in range(WORD):
            memory[target + pixel] = max(memory[target + pixel], palette[colours + pictures[before + pixel]])


@jit
def _make_row(memory, source, target, maker, row, words):
    """Makes the pixels of a row that changed words contribute to; source: the first of the row's lines."""
    sums = local_ints(LINE_PIXELS)
    line_weights = maker[LINE_WEIGHTS] + maker[LINE_TAPS] * row
    for pixel in range(LINE_PIXELS):
        sums[pixel] = 0
    for tap in range(maker[LINE_TAPS]):
        weight, line = maker[line_weights + tap], source + LINE_PIXELS * tap
        for pixel in range(LINE_PIXELS):
            sums[pixel] += i32(weight * memory[line + pixel])
    if maker[NEAR] < 0:
        for column in range(LINE_PIXELS // 2):
            memory[target + column] = i32(sums[2 * column] + sums[2 * column + 1] + 2) >> 2
        return
    word = i32(0)
    while words >> word:
        while not words >> word & 1:
            word += i32(1)
        begin = maker[maker[COLUMNS_FROM] + word]
        while words >> word & 1:
            word += i32(1)
        _make_pixels(memory, source, target, maker, line_weights, sums, begin, maker[maker[COLUMNS_BEFORE] + word])


@jit
def _make_pixels(memory, source, target, maker, line_weights, line_sums, begin, end):
    """Makes the pixels begin ... end - 1 of a row from the sums of its lines."""
    taps, weights = maker[COLUMN_TAPS], maker[COLUMN_WEIGHTS] + maker[COLUMN_TAPS] * begin
    sums = local_ints(LINE_PIXELS)
    for column in range(begin, end):
        at = maker[maker[FIRST_COLUMNS] + column]
        weighted = i32(maker[weights] * line_sums[at] + maker[weights + 1] * line_sums[at + 1])
        weighted += i32(maker[weights + 2] * line_sums[at + 2])
        for tap in range(MIN_TAPS, taps):
            weighted += i32(maker[weights + tap] * line_sums[at + tap])
        sums[column] = weighted
        weights += taps

    total = i32(maker[LINE_TOTAL] * maker[COLUMN_TOTAL])
    inverse = f32(0.5) / f32(total)
    nearest = total
    for column in range(begin, end):
        doubled = i32(2 * sums[column] + total)
        mean = i32(f32(doubled) * inverse)  # can be off by one only if the remainder is near
        rest = i32(doubled - 2 * total * mean)
        nearest = min(nearest, rest, i32(2 * total - rest))
        memory[target + column] = mean
    if nearest <= maker[NEAR]:
        for column in range(begin, end):
            rest = i32((2 * sums[column] + total) % i32(2 * total))
            if min(rest, i32(2 * total - rest)) <= maker[NEAR]:
                at, weights = maker[maker[FIRST_COLUMNS] + column], maker[COLUMN_WEIGHTS] + taps * column
                mean = _mean_as_cv2(memory, source + at, maker, line_weights, weights, sums[column])
                memory[target + column] = mean


@jit
def _mean_as_cv2(memory, source, maker, line_weights, column_weights, weighted_sum):
    """Returns one pixel of the frame: the mean in float32, rounded to the nearest integer, halves to even."""
    mean = f32(0)
    if maker[IS_WHOLE]:
        mean = f32(weighted_sum) * f32(1 / (maker[LINE_TOTAL] * maker[COLUMN_TOTAL]))
    else:
        for line in range(maker[LINE_TAPS]):
            in_line = f32(0)
            for column in range(maker[COLUMN_TAPS]):
                weight = f32(maker[column_weights + column] / maker[COLUMN_TOTAL])
                in_line += f32(memory[source + LINE_PIXELS * line + column]) * weight
            mean += f32(maker[line_weights + line] / maker[LINE_TOTAL]) * in_line
    whole = i32(mean)
    part = mean - f32(whole)
    return i32(whole + (part > f32(0.5) or (part == f32(0.5) and whole & 1)))


class FramePlan:
    """Plans how one game's frames are made.

    height: the screen's. frame_shape: height, width. maker: make_frame's settings and tables. memory_size: bytes that
    make_frame needs for each environment, zero at first. They hold earlier results, but each frame depends only on its
    pictures. made_shape: what make_frame writes: the frame's shape, or the whole screen's if the frame has more lines
    or columns; then `finish` enlarges it with cv2."""

    def __init__(self, height: int, frame_shape: tuple[int, int], color: bool):
        self.frame_shape = frame_shape
        halves = LINE_PIXELS == 2 * frame_shape[1] and 0 <= height - 2 * frame_shape[0] <= MAX_CROPPED_ROWS
        lines = 2 * frame_shape[0] if halves else height
        self.enlarges = frame_shape[0] > height or frame_shape[1] > LINE_PIXELS
        made = (height, LINE_PIXELS) if self.enlarges else frame_shape
        channels = 3 if color else 1
        self.made_shape = (channels, *made) if color else made
        rows, columns = _weights(lines, made[0]), _weights(LINE_PIXELS, made[1], MIN_TAPS)
        line_taps, column_taps = rows.weights.shape[1], columns.weights.shape[1]
        # A float32 operation has an error of 2 ** -24 of its result, which is at most 255. A mean has fewer than these.
        total, roundings = rows.total * columns.total, 2 * (line_taps + column_taps)
        near = -1 if halves else int(2 * total * 255 * roundings * 2.0**-24)
        is_whole = lines % made[0] == 0 and LINE_PIXELS % made[1] == 0
        edges = np.arange(WORDS + 1) * made[1]
        tables = [rows.first, rows.weights, columns.first, columns.weights, edges // WORDS, -(-edges // WORDS)]
        begins = np.cumsum([SETTINGS, *(table.size for table in tables[:-1])])
        settings = [lines, channels, *made, line_taps, column_taps, rows.total, columns.total, near, is_whole, *begins]
        self.maker = np.concatenate([settings, *(table.ravel() for table in tables)]).astype(np.int32)
        size = channels * COLOURS + (2 + channels) * lines * LINE_PIXELS + channels * made[0] * made[1]
        self.memory_size = -(-size // 64) * 64  # whole cache lines

    def finish(self, made: Bytes, frames: Bytes) -> None:
        """Enlarges screens [n, *made_shape] to frames [n, *frame_shape] or [n, 3, *frame_shape], C-contiguous."""
        import cv2

        screens, size = made.reshape(-1, *made.shape[-2:]), self.frame_shape[::-1]
        for screen, frame in zip(screens, frames.reshape(-1, *self.frame_shape), strict=True):
            cv2.resize(screen, size, dst=frame, interpolation=cv2.INTER_AREA)


class Weights(NamedTuple):
    """The weights of the mean for each pixel of a shorter line: `taps` pixels from first [n] on, with weights [n, taps]
    that sum to total."""

    first: npt.NDArray[Any]
    weights: npt.NDArray[Any]
    total: int


@cache
def _weights(length: int, shorter: int, least_taps: int = 1) -> Weights:
    """Returns the integer weights of area means."""
    # A pixel of the line has `parts` parts; a pixel of the shorter line covers `total` of them.
    parts, total = np.array([shorter, length]) // np.gcd(shorter, length)
    begins = np.arange(shorter) * total
    taps = max(least_taps, (-(-(begins + total) // parts) - begins // parts).max())
    first = np.minimum(begins // parts, length - taps)
    pixels = (first[:, None] + np.arange(taps)) * parts
    overlaps = np.minimum(pixels + parts, begins[:, None] + total) - np.maximum(pixels, begins[:, None])
    return Weights(first, np.maximum(overlaps, 0), int(total))
