"""Makes what the network sees, a frame, out of an emulator's pictures: palette, maximum of two, area means.

The frames are those of envs/frames.py, bit for bit, which cv2 makes (INTER_AREA). Three steps, each of which is done
again only where what goes into it has changed since the last call:

* Both pictures are compared with those of the last call, pieces of 32 pixels at a time.
* Changed pieces become grey values, or red, green and blue: the screen.
* A pixel of the frame is a mean of the screen: its lines and columns have integer weights, as 2, 2, 1 and 21, 19 of 40
  for 84x84. The sum of a row's lines serves all pixels of the row.

cv2 sums in float32. Where the mean lies so close to a half that its rounding errors decide, the sum is made again as
cv2 makes it: the same operations in the same order. Only 2x2 pixels are summed as integers there, halves rounded up.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.intrinsics import WORD, differing_words, local_ints
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import LINE_PIXELS

f32, u8 = np.float32, np.uint8
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

WORDS = LINE_PIXELS // WORD
ALL_WORDS = 2**WORDS - 1
COLOURS = 256
MOST_CROPPED = 8  # lines at the bottom that may be dropped so that the frame is an exact half of the screen

# What is in a maker, int32: settings, then tables.
LINES = 0  # of the screen that the frame shows
CHANNELS = 1
HEIGHT = 2  # of the frame
WIDTH = 3
LINE_TAPS = 4  # lines that make a row of the frame
COLUMN_TAPS = 5  # columns that make a column of the frame
LINE_TOTAL = 6  # sum of the lines' weights
COLUMN_TOTAL = 7
NEAR = 8  # how near to a half a mean is summed again, in units of half a weight; -1: never
SUMS_INTEGERS = 9  # cv2 divides the sum once, since lines and columns of the frame are whole ones of the screen
FIRST_LINES = 10  # where the tables are: [HEIGHT], of each row
LINE_WEIGHTS = 11  # [HEIGHT, LINE_TAPS]
FIRST_COLUMNS = 12  # [WIDTH]
COLUMN_WEIGHTS = 13  # [WIDTH, COLUMN_TAPS]
FIRST_CHANGED = 14  # [WORDS + 1]: the first column of the frame that a word is in
FIRST_UNCHANGED = 15  # [WORDS + 1]: the first column that this word and later ones are in alone
SETTINGS = 16


@jit
def make_frame(pictures, newest, before, palette, maker, memory, frame):
    """Writes the frame of the pixel-wise maximum of two pictures, or of one.

    pictures: uint8, the palette's indices; newest, before: where in it the two begin, before < 0: there is only one.
    palette: uint8 [channels * 256]. maker, memory: see FramePlan. frame: uint8 [channels * height * width]."""
    if before < 0:
        before = newest
    channels, height, width = maker[CHANNELS], maker[HEIGHT], maker[WIDTH]
    size = i32(LINE_PIXELS * maker[LINES])
    screen = i32(COLOURS * channels + 2 * size)
    last_frame = i32(screen + channels * size)
    changed = local_ints(PICTURE_LINES)  # of each line, a bit for each word
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
    """Remembers palette and pictures; changes the screen where they differ from the last call's, and notes it in
    `changed`. Returns whether anything has changed."""
    old_newest = COLOURS * maker[CHANNELS]
    size = LINE_PIXELS * maker[LINES]
    old_before, screen = old_newest + size, old_newest + 2 * size
    always = i32(0)
    for colour in range(old_newest):
        if memory[colour] != palette[colour]:
            memory[colour] = palette[colour]
            always = i32(ALL_WORDS)
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
            for channel in range(maker[CHANNELS]):
                colours, target = COLOURS * channel, screen + size * channel
                for word in range(WORDS):
                    if words >> word & 1:
                        for pixel in range(WORD * word, WORD * word + WORD):
                            memory[target + pixel] = palette[colours + pictures[newest + pixel]]
                        if mixed >> word & 1:
                            for pixel in range(WORD * word, WORD * word + WORD):
                                value = palette[colours + pictures[before + pixel]]
                                memory[target + pixel] = max(value, memory[target + pixel])
        newest += LINE_PIXELS
        before += LINE_PIXELS
        old_newest += LINE_PIXELS
        old_before += LINE_PIXELS
        screen += LINE_PIXELS
    return any_changed != 0


@jit
def _make_row(memory, source, target, maker, row, words):
    """Makes the pixels of a row into which changed words go; source: the first of the row's lines."""
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
        begin = maker[maker[FIRST_CHANGED] + word]
        while words >> word & 1:
            word += i32(1)
        _make_pixels(memory, source, target, maker, line_weights, sums, begin, maker[maker[FIRST_UNCHANGED] + word])


@jit
def _make_pixels(memory, source, target, maker, line_weights, sums, begin, end):
    taps, weights = maker[COLUMN_TAPS], maker[COLUMN_WEIGHTS] + maker[COLUMN_TAPS] * begin
    weighted = local_ints(LINE_PIXELS)
    for column in range(begin, end):
        first = maker[maker[FIRST_COLUMNS] + column]
        total = i32(maker[weights] * sums[first])
        for tap in range(1, taps):
            total += i32(maker[weights + tap] * sums[first + tap])
        weighted[column] = total
        weights += taps
    total = i32(maker[LINE_TOTAL] * maker[COLUMN_TOTAL])
    inverse = f32(0.5) / f32(total)
    nearest = i32(total)
    for column in range(begin, end):
        doubled = i32(2 * weighted[column] + total)
        mean = i32(f32(doubled) * inverse)
        rest = i32(doubled - 2 * total * mean)
        nearest = min(nearest, rest, i32(2 * total - rest))
        memory[target + column] = mean
    if nearest <= maker[NEAR]:
        for column in range(begin, end):
            rest = i32((2 * weighted[column] + total) % i32(2 * total))
            if min(rest, i32(2 * total - rest)) <= maker[NEAR]:
                weights, first = maker[COLUMN_WEIGHTS] + taps * column, maker[maker[FIRST_COLUMNS] + column]
                memory[target + column] = _mean_as_cv2(
                    memory, source + first, maker, line_weights, weights, weighted[column]
                )


@jit
def _mean_as_cv2(memory, source, maker, line_weights, column_weights, weighted):
    """Returns the mean of one pixel of the frame in float32, rounded to the nearest integer, halves to the even one."""
    mean = f32(0)
    if maker[SUMS_INTEGERS]:
        mean = f32(weighted) * f32(1 / (maker[LINE_TOTAL] * maker[COLUMN_TOTAL]))
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
    """How the frames of one game are made.

    height: of the screen. frame_shape: height, width. maker: make_frame's settings and tables. memory_size: bytes that
    make_frame needs for each environment, zero at first; whatever they hold of earlier calls, each frame depends on its
    own pictures only. made_shape: of what make_frame writes: the frame, or the whole screen if the frame has more lines
    or columns than that; cv2 enlarges it in `finish`."""

    def __init__(self, height: int, frame_shape: tuple[int, int], color: bool):
        self.frame_shape = frame_shape
        halves = LINE_PIXELS == 2 * frame_shape[1] and 0 <= height - 2 * frame_shape[0] <= MOST_CROPPED
        lines = 2 * frame_shape[0] if halves else height
        self.enlarges = frame_shape[0] > height or frame_shape[1] > LINE_PIXELS
        made = (height, LINE_PIXELS) if self.enlarges else frame_shape
        channels = 3 if color else 1
        self.made_shape = (channels, *made) if color else made
        rows, columns = _weights(lines, made[0]), _weights(LINE_PIXELS, made[1])
        is_whole = len(np.unique(rows.weights)) == len(np.unique(columns.weights)) == 1
        total = rows.total * columns.total
        roundings = rows.weights.shape[1] + columns.weights.shape[1] + 4
        near = -1 if halves else int(2 * total * 255 * roundings * 2.0**-23)
        edges = np.arange(WORDS + 1) * made[1]
        tables = [rows.first, rows.weights, columns.first, columns.weights, edges // WORDS, -(-edges // WORDS)]
        places = np.cumsum([SETTINGS, *(table.size for table in tables[:-1])])
        settings = [lines, channels, *made, rows.weights.shape[1], columns.weights.shape[1], rows.total]
        settings += [columns.total, near, is_whole, *places]
        assert len(settings) == SETTINGS
        self.maker: Ints = np.concatenate([settings, *(table.ravel() for table in tables)]).astype(np.int32)
        size = channels * COLOURS + (2 + channels) * lines * LINE_PIXELS + channels * made[0] * made[1]
        self.memory_size = -(-size // 64) * 64

    def finish(self, made: Bytes, frames: Bytes) -> None:
        """Writes the frames [n, *frame_shape] or [n, 3, *frame_shape] of the screens [n, *made_shape], enlarged."""
        import cv2

        size = self.frame_shape[::-1]
        for screen, frame in zip(made.reshape(-1, *made.shape[-2:]), frames.reshape(-1, *self.frame_shape)):
            cv2.resize(screen, size, dst=frame, interpolation=cv2.INTER_AREA)


class Weights(NamedTuple):
    """Of which pixels each pixel of a shorter line is the mean: first: int [n]. weights: int [n, taps]; their sum is
    total, for each pixel."""

    first: npt.NDArray[Any]
    weights: npt.NDArray[Any]
    total: int


@cache
def _weights(length: int, shorter: int) -> Weights:
    """Returns the integer weights of the area means of a line."""
    # Of length / shorter = total / parts, a pixel of the line has `parts` parts, one of the shorter line has `total`.
    parts, total = np.array([shorter, length]) // np.gcd(shorter, length)
    begin = np.arange(shorter) * total
    taps = (-(-(begin + total) // parts) - begin // parts).max()
    first = np.minimum(begin // parts, length - taps)
    part = (first[:, None] + np.arange(taps)) * parts
    overlap = np.minimum(part + parts, begin[:, None] + total) - np.maximum(part, begin[:, None])
    return Weights(first, np.maximum(overlap, 0), int(total))
