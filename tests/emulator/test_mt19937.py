"""The random generator against numpy's."""

import numpy as np

from accel_rl.emulator import BatchAtari
from accel_rl.emulator.mt19937 import SIZE
from accel_rl.emulator.state import ACTION_GENERATOR


def test_numbers_equal_numpys_mt19937() -> None:
    """The generator's words equal numpy's for every seed, also beyond a block of 624. The tests of sticky actions
    compare the draws from these words with ale-py's."""
    seeds, frames = [0, 1, 4753849, 2**31 - 1, -2], 330
    atari = BatchAtari("pong", len(seeds), seed=seeds, draw=False, frame_skip=frames)
    atari.step(np.zeros(len(seeds), int))
    for env, seed in enumerate(seeds):
        oracle = np.random.MT19937()
        oracle._legacy_seeding(seed % 2**32)
        oracle.random_raw(2 * frames)  # each of two players draws one
        expected = oracle.state["state"]
        words = atari.words(env)[ACTION_GENERATOR:]
        assert (words[:SIZE].astype(np.uint32) == expected["key"]).all() and words[SIZE] == expected["pos"]
