"""The doctor's process with checks that end it, hang, or leave CUDA unusable."""

import os
import time

import torch

from accel_rl.doctor import process
from accel_rl.doctor.probe import Probe, check


@check("exits", "nothing")
def _exits(probe: Probe) -> None:
    print("last words", flush=True)
    os._exit(7)


@check("hangs", "nothing")
def _hangs(probe: Probe) -> None:
    time.sleep(600)


@check("spoils", "nothing")
def _spoils(probe: Probe) -> None:
    """Leaves an error that every later call raises, as an illegal memory access does."""

    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.synchronize = refuse


@check("is fine", "nothing")
def _is_fine(probe: Probe) -> None:
    torch.cuda.synchronize(probe.device)


if __name__ == "__main__":
    process.main()
