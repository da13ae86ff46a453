"""Makes GPUs compute the same numbers as the CPU, also in processes that a test starts."""

import contextlib
import os
import sys
from collections.abc import Iterator

from accel_rl.doctor.same_numbers import CpuRandomNumbers, exact_float32
from tests.fake_cuda.runtime import ROOT, STARTUP, replaced

VARIABLE = "ACCEL_RL_SAME_NUMBERS"  # processes that inherit it call install_same_numbers when they import torch


@contextlib.contextmanager
def same_numbers() -> Iterator[None]:
    """Gives GPUs the CPU's random numbers and exact float32 for a block, also in processes that it starts."""
    path = os.pathsep.join([str(STARTUP), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with replaced(os.environ, {VARIABLE: "1", "PYTHONPATH": path}), exact_float32(), CpuRandomNumbers():
        sys.path.insert(0, str(STARTUP))
        try:
            yield
        finally:
            sys.path.remove(str(STARTUP))


def install_same_numbers() -> None:
    """Does the same as `same_numbers`, for the rest of this process."""
    _forever.enter_context(exact_float32())
    _forever.enter_context(CpuRandomNumbers())


_forever = contextlib.ExitStack()
