"""ScreenResizer gives exactly what cv2's INTER_AREA gives on the whole screen."""

import cv2
import numpy as np
import pytest

from accel_rl.envs import resize
from accel_rl.envs.atari import AtariSimulator, games, make_options
from accel_rl.envs.resize import ScreenResizer


def whole(screen):
    return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)


def resized(resizer, screen):
    row = np.full((84, 84), 77, np.uint8)
    resizer.resize(screen, row)
    return row


def test_one_bright_pixel_by_hand():
    """A pixel of the frame is 5/2 rows by 40/21 columns. Row 2 goes half to row 0, half to row 1: 1/5 of either.
    Of column 1, 19/21 go to column 0 and 2/21 to column 1: 19/40 and 2/40 of these."""
    resizer, screen = ScreenResizer(), np.zeros((210, 160), np.uint8)
    screen[2, 1] = 200
    expected = np.zeros((84, 84), np.uint8)
    expected[:2, 0] = 19  # 200 * 1/5 * 19/40
    expected[:2, 1] = 2
    assert np.array_equal(resized(resizer, screen), expected)
    screen[2, 1] = 0
    screen[-5:, -40:] = 123  # the last tile
    expected[:] = 0
    expected[-2:, -21:] = 123
    assert np.array_equal(resized(resizer, screen), expected)


@pytest.mark.parametrize("colours", [2, 16, 256])
def test_noise(colours):
    """Any number of tiles changes from one screen to the next, from none to all."""
    rng = np.random.default_rng(colours)
    resizer, screen = ScreenResizer(), np.zeros((210, 160), np.uint8)
    for changes in [168, 0, 1, resize.MOST_CHANGED, resize.MOST_CHANGED + 1, 0, *rng.integers(169, size=100)]:
        for tile in rng.permutation(168)[:changes]:
            noise = rng.integers(colours, size=(5, 40)) * (255 // (colours - 1))
            top, left = 5 * (tile // 4), 40 * (tile % 4)
            screen[top : top + 5, left : left + 40] = noise
        assert np.array_equal(resized(resizer, screen), whole(screen))


def test_a_change_of_one_pixel_is_seen():
    """Once in each word of 8 pixels, and each pixel of the words in turn."""
    resizer, screen = ScreenResizer(), np.zeros((210, 160), np.uint8)
    for word in range(4200):
        screen.reshape(-1)[8 * word + word % 8] = 255
        assert np.array_equal(resized(resizer, screen), whole(screen)), word


@pytest.mark.slow
def test_games():
    """Random play of every fifth game; one more resizer sees screens of all of them, one after another."""
    shared, rng = ScreenResizer(), np.random.default_rng(0)
    for game in sorted(games())[::5]:
        simulator = AtariSimulator(game, make_options("v5", {}), np.random.SeedSequence(0))
        row = np.zeros((84, 84), np.uint8)
        simulator.reset(row)
        for step in range(12):
            if simulator.step(rng.integers(simulator.spec.action_space.n), row).game_over:
                simulator.reset(row)
            assert np.array_equal(row, whole(simulator._frames._screen)), game
            if step % 4 == 3 and simulator._frames._screen.shape == (210, 160):
                assert np.array_equal(resized(shared, simulator._frames._screen), row), game
