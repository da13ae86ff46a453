"""Copies many tensors at once. PyTorch's operation for it is private, so it is used here only, and may be missing."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def copy_tensors(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copies each source into its target, which has the same shape; on a GPU with few launches."""
    targets, sources = list(targets), list(sources)
    if not targets:
        return  # the operation refuses empty lists
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
