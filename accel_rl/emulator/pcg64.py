"""Generates the random numbers of NumPy's default generator, PCG64, in compiled functions.

Source: M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
Generation", 2014 (PCG XSL RR 128/64). Bounded numbers are drawn as D. Lemire describes in "Fast Random Integer
Generation in an Interval", 2019, from halves of 64 bits, the lower half first. A generator is 10 words: the state and
the increment (four words each, lowest first), a flag that the upper half of the last number is still unused, and that
half.
"""

from typing import Any

import numpy as np

from accel_rl.emulator.compiled import i32, jit

GENERATOR_WORDS = 10
_INCREMENT, _HAS_HALF, _HALF = 4, 8, 9
_MULTIPLIER_HIGH, _MULTIPLIER_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_LOW_HALF = np.uint64(0xFFFFFFFF)
u32, u64 = np.uint32, np.uint64


@jit
def draw_64(s, generator):
    """Returns the next 64 random bits of the generator whose words begin at `generator` (uint64)."""
    low, high = _read(s, generator), _read(s, generator + 2)
    product_low, product_high = _multiply(low, _MULTIPLIER_LOW)
    product_high = u64(product_high + u64(low * _MULTIPLIER_HIGH) + u64(high * _MULTIPLIER_LOW))
    increment = _read(s, generator + _INCREMENT)
    new_low = u64(product_low + increment)
    carry = u64(new_low < increment)
    new_high = u64(product_high + _read(s, generator + _INCREMENT + 2) + carry)
    _write(s, generator, new_low)
    _write(s, generator + 2, new_high)
    bits = u64(new_high ^ new_low)
    turn = u64(new_high >> u64(58))
    return u64(bits >> turn | bits << (u64(64) - turn & u64(63)))


@jit
def draw_53(s, generator):
    """Returns 53 random bits (uint64): NumPy's `random()` times 2**53."""
    return u64(draw_64(s, generator) >> u64(11))


@jit
def draw_below(s, generator, end):
    """Returns a random integer from 0 to end - 1, like NumPy's `integers(end)`; end: 1 to 2**31 - 1."""
    if end == 1:
        return i32(0)  # without a draw
    product = u64(u64(_draw_32(s, generator)) * u64(end))
    if u64(product & _LOW_HALF) < u64(end):
        rejected = u64(u64(2**32 - end) % u64(end))
        while u64(product & _LOW_HALF) < rejected:
            product = u64(u64(_draw_32(s, generator)) * u64(end))
    return i32(product >> u64(32))


@jit
def _draw_32(s, generator):
    if s[generator + _HAS_HALF]:
        s[generator + _HAS_HALF] = 0
        return u32(s[generator + _HALF])
    bits = draw_64(s, generator)
    s[generator + _HAS_HALF] = 1
    s[generator + _HALF] = i32(u32(bits >> u64(32)))
    return u32(bits & _LOW_HALF)


@jit
def _multiply(a, b):
    """Returns the lower and the upper 64 bits of the product of two 64-bit numbers."""
    a_low, a_high, b_low, b_high = u64(a & _LOW_HALF), u64(a >> u64(32)), u64(b & _LOW_HALF), u64(b >> u64(32))
    low = u64(a_low * b_low)
    middle = u64(u64(a_high * b_low) + u64(low >> u64(32)))
    other = u64(u64(a_low * b_high) + u64(middle & _LOW_HALF))
    return u64(a * b), u64(u64(a_high * b_high) + u64(middle >> u64(32)) + u64(other >> u64(32)))


@jit
def _read(s, word):
    return u64(u64(u32(s[word])) | u64(u64(u32(s[word + 1])) << u64(32)))


@jit
def _write(s, word, value):
    s[word] = i32(u32(value & _LOW_HALF))
    s[word + 1] = i32(u32(value >> u64(32)))


def to_words(generator: np.random.Generator) -> np.ndarray:
    """Returns the words of a NumPy generator, int32 [GENERATOR_WORDS]; raises TypeError if it is not a PCG64."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"{state['bit_generator']} is no PCG64")
    numbers = (state["state"]["state"], state["state"]["inc"])
    words = [number >> 32 * word & 0xFFFFFFFF for number in numbers for word in range(4)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint32).view(np.int32)


def to_numpy_state(words: np.ndarray) -> dict[str, Any]:
    """Returns the `state` of NumPy's PCG64 that corresponds to these words."""
    numbers = [int(word) for word in words.view(np.uint32)]
    state, increment = (sum(numbers[at + word] << 32 * word for word in range(4)) for at in (0, _INCREMENT))
    return {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": increment},
        "has_uint32": numbers[_HAS_HALF],
        "uinteger": numbers[_HALF],
    }
