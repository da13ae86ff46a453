"""Sets the precision in which networks compute."""

from contextlib import AbstractContextManager, nullcontext

import torch

_NOTHING = nullcontext()


def set_precision(name: str, device: str) -> None:
    """Lets a GPU round factors to TF32 in this process, unless name is float32. Does nothing on a CPU."""
    if device != "cpu":
        torch.backends.cudnn.allow_tf32 = name != "float32"
        torch.set_float32_matmul_precision("highest" if name == "float32" else "high")


def precision(bf16: bool, device: torch.device) -> AbstractContextManager[None]:
    """Returns a context in which convolutions and matrix products are in bfloat16, or one that changes nothing."""
    if not bf16:
        return _NOTHING  # entering autocast takes longer than the products of a small network
    # No cache of converted weights: it would not outlive the capture of a CUDA graph.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
