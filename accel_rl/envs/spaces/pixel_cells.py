"""Divides pictures into the cells of pixel control. Imports no torch, since agents count the cells, too."""

from accel_rl.errors import UsageError


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
