"""Makes the network's frames from an emulator's screens, in grayscale or in color."""

import ale_py
import cv2
import numpy as np

from accel_rl.envs.games.resize import FRAME, SCREEN, ScreenResizer
from accel_rl.envs.spec import Array

cv2.setNumThreads(0)

MAX_CROPPED_ROWS = 8  # rows that may be dropped at the bottom to make the frame exactly half the screen


class FrameMaker:
    """A maker of frames from one game's screens: [H, W] uint8 in grayscale, [3, H, W] in color (red, green, blue).

    Each channel is downsized separately, by area means. screen_shape, frame_shape: height, width."""

    def __init__(self, screen_shape: tuple[int, int], frame_shape: tuple[int, int], color: bool):
        height, width = screen_shape
        frame_height, frame_width = frame_shape
        self._color = color
        self._screen = np.zeros((height, width, 3) if color else (height, width), np.uint8)
        self._screen_before = np.zeros_like(self._screen)
        self._size = (frame_width, frame_height)
        halves = width == 2 * frame_width and 0 <= height - 2 * frame_height <= MAX_CROPPED_ROWS
        self._cropped = self._screen[: 2 * frame_height if halves else height]
        num_channels = 3 if color else 1
        self._channels = [np.zeros(self._cropped.shape[:2], np.uint8) for _ in range(num_channels)]
        self._resizers: list[ScreenResizer] = []
        if screen_shape == SCREEN and frame_shape == FRAME:
            self._resizers = [ScreenResizer() for _ in range(num_channels)]

    def keep(self, ale: ale_py.ALEInterface) -> None:
        """Keeps the screen for `write`, which can combine it with the next one."""
        self._read(ale, self._screen_before)

    def write(self, ale: ale_py.ALEInterface, row: Array, with_kept: bool = False) -> None:
        """Writes the frame of the current screen, or (with_kept) of its pixel-wise maximum with the kept screen."""
        self._read(ale, self._screen)
        if with_kept:
            np.maximum(self._screen, self._screen_before, out=self._screen)
        if self._color:
            for channel, part in enumerate(cv2.split(self._cropped, self._channels)):
                self._write_channel(channel, part, row[channel])
        else:
            self._write_channel(0, self._cropped, row)

    def _read(self, ale: ale_py.ALEInterface, screen: Array) -> None:
        if self._color:
            ale.getScreenRGB(screen)
        else:
            ale.getScreenGrayscale(screen)

    def _write_channel(self, channel: int, screen: Array, row: Array) -> None:
        if self._resizers:
            self._resizers[channel].resize(screen, row)
        else:  # INTER_AREA at exactly one half is the rounded 2x2 mean (a + b + c + d + 2) >> 2.
            cv2.resize(screen, self._size, dst=row, interpolation=cv2.INTER_AREA)
