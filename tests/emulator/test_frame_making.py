"""make_frame gives exactly the frames of FrameMaker and of cv2."""

import itertools
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from accel_rl.emulator.compiled import address, entry
from accel_rl.emulator.frame_making import FramePlan
from accel_rl.emulator.frame_making import make_frame as compiled_make_frame
from accel_rl.emulator.palette import grey_palette, rgb_palette
from accel_rl.envs.games.frames import FrameMaker

Bytes = npt.NDArray[np.uint8]
GREY = np.arange(256, dtype=np.uint8)  # a palette whose indices are grey values
SHAPES = [
    (210, (104, 80)),  # halves, cropped or not
    (210, (105, 80)),
    (250, (121, 80)),
    (250, (125, 80)),
    (210, (84, 84)),
    (250, (84, 84)),
    (210, (100, 80)),  # 10 rows are too many to be cropped
    (210, (96, 96)),
    (210, (42, 40)),  # whole pixels
    (210, (70, 80)),
    (210, (105, 160)),
    (210, (42, 42)),
    (210, (209, 159)),
    (250, (1, 1)),
    (210, (7, 3)),
    (210, (210, 160)),
]
LARGER = [(210, (252, 200)), (210, (300, 84)), (210, (84, 168)), (250, (250, 161))]


@entry
def make_frame(pictures, newest, before, palette, maker, memory, frame):  # type: ignore[no-untyped-def]
    """Makes one frame; pictures: uint8 [pixels]."""
    compiled_make_frame(
        address(pictures), newest, before, address(palette), address(maker), address(memory), address(frame)
    )


@dataclass
class Screen:
    """A screen that answers like ale-py's emulator. palette: uint8 [256] or [256, 3]."""

    picture: Bytes
    palette: Bytes

    def read(self, screen: Bytes) -> None:
        screen[...] = self.palette[self.picture]

    getScreenGrayscale = getScreenRGB = read  # noqa: N815


class Makers:
    """Makes frames of pictures [height, 160] with FrameMaker and with make_frame."""

    def __init__(self, height: int, frame_shape: tuple[int, int], color: bool = False, palette: Bytes = GREY):
        self.size, self.palette = height * 160, palette
        self.plan = FramePlan(height, frame_shape, color)
        self.memory = np.zeros(self.plan.memory_size, np.uint8)
        self._maker: Any = FrameMaker((height, 160), frame_shape, color)
        self._shape = (3, *frame_shape) if color else frame_shape

    def expected(self, newest: Bytes, before: Bytes | None = None) -> Bytes:
        frame = np.zeros(self._shape, np.uint8)
        if before is not None:
            self._maker.keep(Screen(before, self.palette))
        self._maker.write(Screen(newest, self.palette), frame, before is not None)
        return frame

    def made(self, newest: Bytes, before: Bytes | None = None) -> Bytes:
        pictures = np.full(3 * self.size, 77, np.uint8)
        pictures[2 * self.size :] = newest.ravel()
        if before is not None:
            pictures[: self.size] = before.ravel()
        palette = np.ascontiguousarray(self.palette.T).reshape(-1)
        made = np.full(self.plan.made_shape, 77, np.uint8)
        flat = made.reshape(-1)
        at_before = -1 if before is None else 0
        make_frame(pictures, 2 * self.size, at_before, palette, self.plan.maker, self.memory, flat)
        if not self.plan.enlarges:
            return made
        frames = np.full((1, *self._shape), 77, np.uint8)
        self.plan.finish(made[None], frames)
        return frames[0]

    def check(self, newest: Bytes, before: Bytes | None = None) -> None:
        expected = self.expected(newest, before)
        assert np.array_equal(self.made(newest, before), expected)
        if expected.shape == (84, 84):  # FrameMaker resizes only what has changed
            screen = np.maximum(self.palette[newest], 0 if before is None else self.palette[before])
            assert np.array_equal(expected, cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA))


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize(("height", "frame_shape"), SHAPES + LARGER)
def test_noise(height: int, frame_shape: tuple[int, int], color: bool) -> None:
    """Frames of noise are equal on both televisions, lost colors included, when any part of either picture changes."""
    rng = np.random.default_rng(height + sum(frame_shape))
    for pal in (False, True):
        makers = Makers(height, frame_shape, color, rgb_palette(pal) if color else grey_palette(pal))
        newest, before = rng.integers(256, size=(2, height, 160), dtype=np.uint8)
        for changes in (9, 0, 1, 2, 100):
            makers.check(newest, before if changes != 2 else None)
            for picture, _ in itertools.product((newest, before), range(changes)):
                top, left, tall, wide = rng.integers((height, 160, 30, 40))
                picture[top : top + tall, left : left + wide] = rng.integers(256)
            if changes == 1:
                newest[...] = before


@pytest.mark.parametrize("frame_shape", [(104, 80), (84, 84)])
def test_a_change_of_one_pixel_is_seen(frame_shape: tuple[int, int]) -> None:
    """A change of any one pixel in either picture shows in the frame, and so does its change back."""
    makers, (newest, before) = Makers(210, frame_shape), np.full((2, 210, 160), 90, np.uint8)
    for word in range(0, 4200, 3):
        picture = (newest, before)[word % 2]
        picture.reshape(-1)[8 * word + word // 3 % 8] = 255
        makers.check(newest, before)
        if word % 5 == 0:
            picture.reshape(-1)[8 * word + word // 3 % 8] = 90


def check_ties(num_screens: int) -> None:
    rng = np.random.default_rng(num_screens)
    makers, ties = Makers(210, (84, 84)), 0
    for index in range(num_screens):
        step = (100, 50, 20, 25, 5)[index % 5]  # a weighted sum of 200 parts is a multiple of step, too
        colours = rng.integers(255 % step + 1) + step * np.arange(255 // step + 1)
        screen = rng.choice(colours[: 2 + index % 7], size=(210, 160)).astype(np.uint8)
        if index % 3 == 0:  # larger patches, as in games
            screen = screen[::2, ::4].repeat(2, axis=0).repeat(4, axis=1)
        makers.check(screen)
        lines = screen.astype(int).reshape(42, 5, 160)
        rows = np.stack([[2, 2, 1, 0, 0] @ lines, [0, 0, 1, 2, 2] @ lines], axis=1).reshape(84, 160)
        parts = rows.repeat(21, axis=1).reshape(84, 84, 40).sum(axis=2)
        ties += int((parts % 200 == 100).sum())
    assert ties > 400 * num_screens


def test_ties() -> None:
    """Halves are rounded as by cv2, whose rounding errors decide which way they go."""
    check_ties(200)


@pytest.mark.slow
def test_millions_of_ties() -> None:
    check_ties(10_000)


def test_a_frame_depends_on_its_own_pictures_only() -> None:
    """A frame depends only on its own pictures and palette, not on earlier frames made in the same memory."""
    rng = np.random.default_rng(0)
    makers = Makers(210, (84, 84), palette=grey_palette(False))
    pictures = rng.integers(128, size=(4, 210, 160), dtype=np.uint8) * 2
    pictures[1, :100] = pictures[0, :100]
    for _ in range(60):
        newest, before = rng.integers(4, size=2)
        makers.palette = (grey_palette(False), grey_palette(True), GREY)[rng.integers(3)]
        makers.check(pictures[newest], pictures[before] if rng.integers(2) else None)


@pytest.mark.slow
def test_every_kind_of_shape() -> None:
    """Frames of random shapes are equal for noise of few and of many colors."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        height = int(rng.choice([210, 250, 228, 214]))
        frame_shape = int(rng.integers(1, height + 1)), int(rng.integers(1, 161))
        makers = Makers(height, frame_shape)
        for colours in (2, 4, 256):
            makers.check(rng.integers(colours, size=(height, 160), dtype=np.uint8) * np.uint8(255 // (colours - 1)))
