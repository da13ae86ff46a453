"""Runs recorded updates without a compiler."""

from accel_rl.updates.compiled_calls import RunCode
from accel_rl.updates.recording import Recording, replay


def replayed(recording: Recording) -> RunCode:
    """Returns a function that does what a recording's machine code does, by PyTorch's operations; it returns copies."""
    return lambda bases, arguments: [result.clone() for result in replay(recording.program, bases, arguments)]
