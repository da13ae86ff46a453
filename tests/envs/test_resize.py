"""ScreenResizer gives exactly the result of cv2's INTER_AREA on the whole screen."""

import cv2
import numpy as np
import pytest

from accel_rl.envs.games import resize
from accel_rl.envs.games.resize import ScreenResizer


def whole(screen):
    return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)


def resized(resizer, screen):
    row = np.full((84, 84), 77, np.uint8)
    resizer.resize(screen, row)
    return row


@pytest.mark.parametrize("colours", [2, 16, 256])
def test_noise(colours):
    """Screens of noise are resized exactly, however many tiles change from one to the next."""
    rng = np.random.default_rng(colours)
    resizer, screen = ScreenResizer(), np.zeros((210, 160), np.uint8)
    for changes in [168, 0, 1, resize.MOST_CHANGED, resize.MOST_CHANGED + 1, 0, *rng.integers(169, size=100)]:
        for tile in rng.permutation(168)[:changes]:
            noise = rng.integers(colours, size=(5, 40)) * (255 // (colours - 1))
            top, left = 5 * (tile // 4), 40 * (tile % 4)
            screen[top : top + 5, left : left + 40] = noise
        assert np.array_equal(resized(resizer, screen), whole(screen))


def test_a_change_of_one_pixel_is_seen():
    """A change of any one pixel in a word of 8 shows in the resized screen."""
    resizer, screen = ScreenResizer(), np.zeros((210, 160), np.uint8)
    for word in range(4200):
        screen.reshape(-1)[8 * word + word % 8] = 255
        assert np.array_equal(resized(resizer, screen), whole(screen)), word
