"""PCG64 in compiled functions against numpy's own."""

import numpy as np
import pytest

from accel_rl.emulator.compiled import entry
from accel_rl.emulator.pcg64 import GENERATOR_WORDS, draw_53, draw_below, to_numpy_state, to_words

AT = 3  # offset of the generator's words in the array


@entry
def draw_all(s, ends, drawn):
    """Draws an integer below each end, or 53 bits where the end is 0."""
    for i in range(ends.shape[0]):
        drawn[i] = draw_below(s, AT, ends[i]) if ends[i] else draw_53(s, AT)


@pytest.mark.parametrize("seed", range(5))
def test_draws_are_numpys(seed):
    """Mixed bounded integers and fractions equal numpy's, rejections included, and so does the state after them."""
    rng = np.random.default_rng(seed)
    ends = np.random.default_rng(100 + seed).choice([0, 0, 1, 2, 31, 1000, 2**30 + 2**29, 2**31 - 1], 3000)
    s, drawn = np.zeros(AT + GENERATOR_WORDS, np.int32), np.zeros(len(ends), np.uint64)
    s[AT:] = to_words(rng)
    draw_all(s, ends.astype(np.int32), drawn)

    expected = [rng.integers(end) if end else rng.random() * 2**53 for end in ends]
    assert drawn.tolist() == [int(number) for number in expected]
    assert to_numpy_state(s[AT:]) == rng.bit_generator.state
    assert to_words(rng).tolist() == s[AT:].tolist()


def test_other_generators_are_refused():
    with pytest.raises(TypeError, match="MT19937 is no PCG64"):
        to_words(np.random.Generator(np.random.MT19937(0)))
