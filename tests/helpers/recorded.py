"""Runs recorded updates without a compiler."""

from accel_rl.updates.compiled_calls import RunCode
from accel_rl.updates.recording import Recording, replay


def replayed(recording: Recording) -> RunCode:
    """Returns what machine code of a recording does, by PyTorch's operations. Its results are views of nothing."""
    return lambda bases, arguments: [result.clone() for result in replay(recording.program, bases, arguments)]
