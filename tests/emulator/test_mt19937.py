"""Tests of the random generator against numpy's."""

import numpy as np
import pytest

from accel_rl.emulator.compiled import entry
from accel_rl.emulator.mt19937 import GENERATOR_WORDS, draw, seed_generator

OFFSET = 3


@entry
def draw_many(s, seed, out):
    """Draws as many numbers as out has."""
    seed_generator(s, OFFSET, seed)
    for n in range(out.size):
        out[n] = draw(s, OFFSET)


@pytest.mark.parametrize("seed", [0, 1, 4753849, 2**31 - 1, -1])
def test_numbers_equal_numpys_mt19937(seed):
    """Would catch: another recurrence, tempering or seeding, and words used across the edge of a block of 624."""
    oracle = np.random.MT19937()
    oracle._legacy_seeding(seed % 2**32)
    words, numbers = np.zeros(GENERATOR_WORDS + 2 * OFFSET, np.int32), np.zeros(2000, np.uint32)
    draw_many(words, seed, numbers)
    assert (numbers == oracle.random_raw(2000)).all()
    assert not words[:OFFSET].any() and not words[OFFSET + GENERATOR_WORDS :].any()
