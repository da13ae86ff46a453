"""Resizes screens from 210x160 (most games) to 84x84, bit for bit like cv2's INTER_AREA, only where they changed.

5 rows of the screen make 2 rows of the frame, and 40 columns make 21. So the screen consists of 42x4 tiles that are
resized independently. Few tiles change in a step. A strip is one row of a tile, 40 pixels.
"""

import cv2
import numpy as np

from accel_rl.envs.spec import Array

SCREEN, FRAME = (210, 160), (84, 84)
NUM_TILES = 42 * 4
MAX_CHANGED = 100  # tiles; with more, resizing the whole screen is as fast
_TOP, _LEFT = np.divmod(np.arange(NUM_TILES)[:, None], 4)
STRIPS = (5 * _TOP + np.arange(5)) * 4 + _LEFT  # [168, 5]: each tile's strips among the screen's 840
FRAME_STRIPS = (2 * _TOP + np.arange(2)) * 4 + _LEFT  # [168, 2]: each tile's strips among the frame's 336
TILE_OF_WORD = np.empty(210 * 4, int)  # a word is 8 pixels, a strip 5 words
TILE_OF_WORD[STRIPS] = np.arange(NUM_TILES)[:, None]
TILE_OF_WORD = TILE_OF_WORD.repeat(5)


class ScreenResizer:
    """A resizer for a sequence of screens that remembers the last one. Each result depends only on its own screen."""

    def __init__(self) -> None:
        self._screen = np.zeros(SCREEN, np.uint8)
        self._frame = np.zeros(FRAME, np.uint8)  # the resized _screen
        self._words = self._screen.reshape(-1).view(np.uint64)
        self._frame_strips = self._frame.reshape(-1, 21)
        self._changed = np.zeros(self._words.shape, bool)
        self._tiles = np.zeros(NUM_TILES, bool)

    def resize(self, screen: Array, row: Array) -> None:
        """Writes the frame [84, 84] of a contiguous screen [210, 160] into row."""
        np.not_equal(screen.reshape(-1).view(np.uint64), self._words, out=self._changed)
        words = self._changed.nonzero()[0]
        if len(words):
            self._tiles.fill(False)
            self._tiles[TILE_OF_WORD[words]] = True
            tiles = self._tiles.nonzero()[0]
            if len(tiles) > MAX_CHANGED:
                cv2.resize(screen, FRAME, dst=self._frame, interpolation=cv2.INTER_AREA)
            else:
                source = screen.reshape(-1, 40).take(STRIPS.take(tiles, axis=0).ravel(), axis=0)
                made = cv2.resize(source, (21, 2 * len(tiles)), interpolation=cv2.INTER_AREA)
                self._frame_strips[FRAME_STRIPS.take(tiles, axis=0).ravel()] = made
            np.copyto(self._screen, screen)
        np.copyto(row, self._frame)
