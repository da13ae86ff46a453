"""Finds the pictures among observations, their channel axis, and the range of their numbers.

Pictures are arrays of three axes, [H, W, C] or [C, H, W], of uint8 or floating-point numbers; gray arrays [H, W] of
uint8; and stacks of pictures, [S, H, W, C] or [S, C, H, W], whose S x C channels become those of one picture.
Imports no torch, since agents count the cells of pixel control, too.
"""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from accel_rl.errors import UsageError

SMALL = 20  # pixels: pictures are small if a side is shorter
LARGE = 36  # pixels: pictures are large, for every network of the papers, if no side is shorter


def is_picture(space: gymnasium.Space[Any]) -> bool:
    """Returns whether observations of this space are pictures."""
    if not isinstance(space, spaces.Box):
        return False
    if space.dtype == np.uint8:
        return len(space.shape) in (2, 3, 4)
    return len(space.shape) in (3, 4) and bool(np.issubdtype(space.dtype, np.floating))


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Returns whether pictures of this shape are [H, W, C].

    Square pictures show it by their equal sides. In others, channels come first if the first axis is the shortest."""
    first, second, third = shape
    if (first == second) != (second == third):
        return first == second
    return not first < min(second, third)


def channels_first(pictures: NDArray[Any], batch_axes: int = 0) -> NDArray[Any]:
    """Returns a picture of any shape above as [C, H, W], after batch_axes axes of a batch; a view if possible."""
    batch, shape = pictures.shape[:batch_axes], pictures.shape[batch_axes:]
    if len(shape) > 2 and is_channels_last(shape[-3:]):
        pictures = np.moveaxis(pictures, -1, -3)
    num_channels = math.prod(pictures.shape[batch_axes:-2])
    return pictures.reshape(*batch, num_channels, *pictures.shape[-2:])


def is_small(shape: tuple[int, ...]) -> bool:
    """Returns whether pictures [C, H, W] of this shape are too small for A3C-Net's convolutions."""
    return min(shape[1:]) < SMALL


def value_range(space: gymnasium.Space[Any]) -> tuple[float, float] | None:
    """Returns the lowest and highest number that pictures of this space may hold; None without bounds."""
    assert isinstance(space, spaces.Box)
    low, high = float(space.low.min()), float(space.high.max())
    return (low, high) if np.isfinite([low, high]).all() and low < high else None


def cell_grid(frame: tuple[int, ...], cell: int) -> tuple[int, int]:
    """Returns how many cells (h, w) of cell x cell pixels pixel control divides a frame (H, W) into.

    Both numbers are even, for the deconvolution. Half of the rest is cropped at each side, an odd pixel at the bottom
    or right: 84x84 pixels have 20x20 cells, 104x80 have 26x20. Raises UsageError for fewer than 4x4 cells."""
    cells = tuple(size // (2 * cell) * 2 for size in frame)
    if min(cells) < 4:
        raise UsageError(
            f"pixel_control needs frames of at least {4 * cell}x{4 * cell} pixels, 4x4 cells of pixel_control_cell="
            f"{cell}, but these have {frame[0]}x{frame[1]}; take it out of --auxiliary"
        )
    return cells[0], cells[1]
