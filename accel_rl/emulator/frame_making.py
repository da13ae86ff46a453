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

from accel_rl.emulator.compiled import as_words, i32, jit, local_ints
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import LINE_PIXELS

f32, u8 = np.float32, np.uint8
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

PIECE = 32  # pixels of a line that are compared at once
PIECES = LINE_PIXELS // PIECE
ALL_PIECES = 2**PIECES - 1
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
PIECE_COLUMNS = 14  # [PIECES, 2]: the first column of the frame that a piece is in, and the one after the last
SETTINGS = 15


@jit
def make_frame(pictures, newest, before, palette, maker, memory, frame):
    """Writes the frame of the pixel-wise maximum of two pictures, or of one.

    pictures: uint8, the palette's indices; newest, before: where in it the two begin, before < 0: there is only one.
    palette: uint8 [channels * 256]. maker, memory: see FramePlan. frame: uint8 [channels * height * width]."""
    if before < 0:
        before = newest
    lines, channels, height, width = maker[LINES], maker[CHANNELS], maker[HEIGHT], maker[WIDTH]
    old = i32(COLOURS * channels)
    last_frame = i32(old + 2 * LINE_PIXELS * lines)
    changed, mixed = local_ints(PICTURE_LINES), local_ints(PICTURE_LINES)
    any_changed = _note_changes(as_words(pictures), newest // 8, before // 8, as_words(memory), old // 8, lines, changed, mixed)
    if _take_palette(as_words(palette), as_words(memory), old // 8):
        any_changed = True
        for line in range(lines):
            changed[line] = ALL_PIECES
    if any_changed:
        for row in range(height):
            first_line = maker[maker[FIRST_LINES] + row]
            pieces = i32(0)
            for line in range(first_line, first_line + maker[LINE_TAPS]):
                pieces |= changed[line]
            for piece in range(PIECES):
                if pieces >> piece & 1:
                    for channel in range(channels):
                        target = last_frame + width * (height * channel + row)
                        _make_pixels(
                            pictures, newest, before, palette, COLOURS * channel, maker, row, piece, mixed, memory, target
                        )
    for pixel in range(channels * height * width):
        frame[pixel] = memory[last_frame + pixel]


@jit
def _take_palette(palette, memory, words):
    """Remembers the palette; returns whether it is another one than the last call's."""
    difference = 0
    for word in range(words):
        difference |= palette[word] ^ memory[word]
        memory[word] = palette[word]
    return difference != 0


@jit
def _note_changes(pictures, newest, before, memory, old, lines, changed, mixed):
    """Remembers two pictures. Sets a bit in `changed` for each piece of a line that differs from the last call's, and
    `mixed` of a line if the two are not equal; returns whether anything has changed."""
    any_changed = False
    for line in range(lines):
        changed[line] = 0
        unequal = 0
        for piece in range(PIECES):
            difference = 0
            for word in range(4 * piece, 4 * piece + 4):
                new_word, word_before = pictures[newest + word], pictures[before + word]
                difference |= (new_word ^ memory[old + 2 * word]) | (word_before ^ memory[old + 2 * word + 1])
                unequal |= new_word ^ word_before
            if difference:
                changed[line] |= 1 << piece
                any_changed = True
                for word in range(4 * piece, 4 * piece + 4):
                    memory[old + 2 * word] = pictures[newest + word]
                    memory[old + 2 * word + 1] = pictures[before + word]
        mixed[line] = unequal != 0
        newest += LINE_PIXELS // 8
        before += LINE_PIXELS // 8
        old += LINE_PIXELS // 4
    return any_changed


@jit
def _make_pixels(pictures, newest, before, palette, colours, maker, row, piece, mixed, memory, target):
    """Makes the pixels of a row into which a piece goes."""
    begin, end = maker[maker[PIECE_COLUMNS] + 2 * piece], maker[maker[PIECE_COLUMNS] + 2 * piece + 1]
    first_columns, column_taps = maker[FIRST_COLUMNS], maker[COLUMN_TAPS]
    first, last = maker[first_columns + begin], maker[first_columns + end - 1] + column_taps
    line = maker[maker[FIRST_LINES] + row]
    newest += LINE_PIXELS * line
    before += LINE_PIXELS * line
    sums, means = local_ints(LINE_PIXELS), local_ints(LINE_PIXELS)
    for pixel in range(first, last):
        sums[pixel] = 0
    for tap in range(maker[LINE_TAPS]):
        weight = maker[maker[LINE_WEIGHTS] + maker[LINE_TAPS] * row + tap]
        if mixed[line + tap]:
            for pixel in range(first, last):
                value = palette[colours + pictures[newest + pixel]]
                other = palette[colours + pictures[before + pixel]]
                sums[pixel] += i32(weight * max(value, other))
        else:
            for pixel in range(first, last):
                sums[pixel] += i32(weight * palette[colours + pictures[newest + pixel]])
        newest += LINE_PIXELS
        before += LINE_PIXELS

    weights = maker[COLUMN_WEIGHTS] + column_taps * begin
    for column in range(begin, end):
        pixel = maker[first_columns + column]
        weighted = i32(0)
        for tap in range(column_taps):
            weighted += i32(maker[weights + tap] * sums[pixel + tap])
        means[column] = weighted
        weights += column_taps
    total = i32(maker[LINE_TOTAL] * maker[COLUMN_TOTAL])
    inverse = f32(0.5) / f32(total)
    nearest = i32(2 * total)
    for column in range(begin, end):
        doubled = i32(2 * means[column] + total)
        mean = i32(f32(doubled) * inverse)
        rest = i32(doubled - 2 * total * mean)
        nearest = min(nearest, rest, i32(2 * total - rest))
        memory[target + column] = mean
    if nearest <= maker[NEAR]:
        _correct(pictures, newest, before, palette, colours, maker, row, begin, end, means, memory, target)


@jit
def _correct(pictures, newest, before, palette, colours, maker, row, begin, end, means, memory, target):
    total = i32(maker[LINE_TOTAL] * maker[COLUMN_TOTAL])
    newest -= LINE_PIXELS * maker[LINE_TAPS]
    before -= LINE_PIXELS * maker[LINE_TAPS]
    for column in range(begin, end):
        rest = (2 * means[column] + total) % (2 * total)
        if min(rest, 2 * total - rest) <= maker[NEAR]:
            first = maker[maker[FIRST_COLUMNS] + column]
            memory[target + column] = _mean_as_cv2(pictures, newest + first, before + first, palette, colours, maker, row, column, means[column])


@jit
def _mean_as_cv2(pictures, newest, before, palette, colours, maker, row, column, weighted):
    """Returns the mean of one pixel of the frame in float32, rounded to the nearest integer, halves to the even one."""
    mean = f32(0)
    if maker[SUMS_INTEGERS]:
        mean = f32(weighted) * f32(1 / (maker[LINE_TOTAL] * maker[COLUMN_TOTAL]))
    else:
        for line in range(maker[LINE_TAPS]):
            in_line = f32(0)
            for tap in range(maker[COLUMN_TAPS]):
                pixel = LINE_PIXELS * line + tap
                value = max(palette[colours + pictures[newest + pixel]], palette[colours + pictures[before + pixel]])
                weight = maker[maker[COLUMN_WEIGHTS] + maker[COLUMN_TAPS] * column + tap]
                in_line += f32(value) * f32(weight / maker[COLUMN_TOTAL])
            mean += f32(maker[maker[LINE_WEIGHTS] + maker[LINE_TAPS] * row + line] / maker[LINE_TOTAL]) * in_line
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
        edges = np.arange(PIECES + 1) * PIECE * made[1] / LINE_PIXELS
        piece_columns = np.stack([np.floor(edges[:-1]), np.ceil(edges[1:])], axis=1)
        tables = [rows.first, rows.weights, columns.first, columns.weights, piece_columns]
        places = np.cumsum([SETTINGS, *(table.size for table in tables[:-1])])
        settings = [lines, channels, *made, rows.weights.shape[1], columns.weights.shape[1], rows.total]
        settings += [columns.total, near, is_whole, *places]
        assert len(settings) == SETTINGS
        self.maker: Ints = np.concatenate([settings, *(table.ravel() for table in tables)]).astype(np.int32)
        size = channels * COLOURS + 2 * lines * LINE_PIXELS + channels * made[0] * made[1]
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
