"""Tests of the random generator against numpy's."""

import numpy as np

from accel_rl.emulator import BatchAtari
from accel_rl.emulator.mt19937 import SIZE
from accel_rl.emulator.state import ACTION_GENERATOR


def test_numbers_equal_numpys_mt19937() -> None:
    """Would catch another recurrence or seeding, and words used across the edge of a block of 624. What is drawn from
    these words is compared with ale-py by the tests of sticky actions."""
    seeds, frames = [0, 1, 4753849, 2**31 - 1, -2], 330
    atari = BatchAtari("pong", len(seeds), seed=seeds, draw=False, frame_skip=frames)
    atari.step(np.zeros(len(seeds), int))
    for env, seed in enumerate(seeds):
        oracle = np.random.MT19937()
        oracle._legacy_seeding(seed % 2**32)
        oracle.random_raw(2 * frames)  # one for each of two players
        expected = oracle.state["state"]
        words = atari.words(env)[ACTION_GENERATOR:]
        assert (words[:SIZE].astype(np.uint32) == expected["key"]).all() and words[SIZE] == expected["pos"]
