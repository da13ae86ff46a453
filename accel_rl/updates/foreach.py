"""Copies many tensors at once. PyTorch's operation for it is private, so only this file uses it."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def copy_tensors(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copies each source into its target, which has the same shape; on a GPU with few launches, and without waiting.

    PyTorch copies tensors together if they are dense and all of one dtype; otherwise it launches one copy for each."""
    together: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if not target.numel():
            continue
        if _is_dense(target) and _is_alike(target, source):
            together.setdefault(target.dtype, []).append((target, source))
        else:
            _copy(target, source)
    for pairs in together.values():
        if len(pairs) == 1:
            _copy(*pairs[0])
        else:
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def _copy(target: Tensor, source: Tensor) -> None:
    # A copy to the host must wait, or it could be read before it has arrived.
    target.copy_(source, non_blocking=target.device.type == "cuda")


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _is_alike(target: Tensor, source: Tensor) -> bool:
    return target.dtype == source.dtype and target.device == source.device and target.stride() == source.stride()
