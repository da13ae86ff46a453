"""Generates the random numbers that ale-py draws: the Mersenne Twister MT19937 of the C++ standard library.

Source: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM Transactions on Modeling and Computer Simulation 8, 1998.
A generator is 625 words of the state: 624 words of 32 random bits, and the number of words used up.
"""

import numpy as np

from accel_rl.emulator.compiled import i32, jit

SIZE = 624
GENERATOR_WORDS = SIZE + 1
_SHIFT_SIZE = 397
_MATRIX = np.uint32(0x9908B0DF)
u32 = np.uint32


@jit
def seed_generator(s, generator, seed):
    """Seeds the generator whose words begin at `generator`; seed: 32 bits."""
    word = u32(seed)
    s[generator] = i32(word)
    for n in range(1, SIZE):
        word = u32(u32(1812433253) * u32(word ^ (word >> u32(30))) + u32(n))
        s[generator + n] = i32(word)
    s[generator + SIZE] = SIZE


@jit
def draw(s, generator):
    """Returns the generator's next 32 random bits (uint32)."""
    if s[generator + SIZE] >= SIZE:
        _twist(s, generator)
    y = u32(s[generator + s[generator + SIZE]])
    s[generator + SIZE] += 1
    y ^= y >> u32(11)
    y ^= u32(y << u32(7)) & u32(0x9D2C5680)
    y ^= u32(y << u32(15)) & u32(0xEFC60000)
    return u32(y ^ (y >> u32(18)))


@jit
def _twist(s, generator):
    """Replaces the 624 words by the next 624."""
    for n in range(SIZE):
        following = u32(s[generator + (n + 1) % SIZE])
        y = (u32(s[generator + n]) & u32(0x80000000)) | (following & u32(0x7FFFFFFF))
        word = u32(s[generator + (n + _SHIFT_SIZE) % SIZE]) ^ (y >> u32(1))
        if y & u32(1):
            word ^= _MATRIX
        s[generator + n] = i32(word)
    s[generator + SIZE] = 0
