"""Adds and subtracts like the 6507, in binary and decimal mode."""

from accel_rl.emulator.compiled import i32, jit


@jit
def add(a, value, carry, decimal):
    """Returns the sum of two bytes and the carry, and the flags C and V."""
    total = i32(a + value + carry)
    carry_out = i32(total >> 8)
    if decimal:
        total = i32(_from_decimal(a) + _from_decimal(value) + carry)
        carry_out = i32(total > 99)
        total = _to_decimal(i32(total & 0xFF))
    overflow = i32((a ^ total) & (value ^ total) & 0x80) >> 7
    return i32(total & 0xFF), carry_out, i32(overflow)


@jit
def subtract(a, value, carry, decimal):
    """Returns the difference of two bytes and the borrow, and the flags C and V."""
    if not decimal:
        return add(a, i32(value ^ 0xFF), carry, i32(0))
    difference = i32(_from_decimal(a) - _from_decimal(value) - 1 + carry)
    if difference < 0:
        difference = i32(difference + 100)
    # As in ale-py's tables: after a borrow of a hundred, digits above 9 give the values of a decimal byte.
    total = _to_decimal(difference) if difference >= 0 else _from_decimal(i32(difference & 0xFF))
    overflow = i32((a ^ total) & (value ^ total) & 0x80) >> 7
    return total, i32(a >= value + 1 - carry), i32(overflow)


@jit
def _from_decimal(byte):
    """Returns the value of a byte of two decimal digits; digits above 9 keep their value."""
    return i32(10 * (byte >> 4) + (byte & 15))


@jit
def _to_decimal(number):
    """Returns the last two decimal digits of a number."""
    rest = i32(number % i32(100))
    return i32(rest // i32(10) << 4 | rest % i32(10))
