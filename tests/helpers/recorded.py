"""Runs recorded updates without a compiler."""

from functools import partial

from accel_rl.updates.compiled_calls import RunCode
from accel_rl.updates.recording import Recording, replay


def replayed(recording: Recording) -> RunCode:
    """Returns what machine code of a recording does, by PyTorch's operations."""
    return partial(replay, recording.program)
