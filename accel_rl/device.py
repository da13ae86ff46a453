"""Which device a setting names, and memory that a GPU reads directly."""

import logging

from accel_rl.errors import UsageError
from accel_rl.shared import SharedArrays

logger = logging.getLogger("accel_rl")


def find_device(name: str, setting: str = "device") -> str:
    """What the name stands for. Raises UsageError if it is none, or there is no such GPU here."""
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"{setting}={name!r} must be auto, cpu or cuda:<number>") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"{setting}={name!r} must be auto, cpu or cuda:<number>")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        usable = ["cpu", *(f"cuda:{index}" for index in range(num_gpus))]
        flag = f"--{setting.replace('_', '-')}"
        raise UsageError(f"{setting}={name!r}, but there is no such GPU here; use {flag} {' or '.join(usable)}")
    return name


def pin(memory: SharedArrays) -> int | None:
    """Lets the GPU read the shared memory directly; its address, or None where the system refuses."""
    import torch

    address, size = memory.address, memory.size
    error = torch.cuda.cudart().cudaHostRegister(address, size, 0)  # type: ignore[no-untyped-call]
    if int(error) != 0:
        logger.warning("the shared memory can't be pinned (CUDA error %d): transfers are slower", int(error))
        return None
    return address


def unpin(address: int) -> None:
    import torch

    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
