"""Assembles stacks of frames, blanks frames of earlier episodes, and interleaves frames for convolutions."""

import cv2
import torch
from torch import Tensor

MAX_INTERLEAVED = 4  # channels; OpenCV has fast kernels for 2 to 4


def sliding_stacks(frames: Tensor, size: int) -> Tensor:
    """Returns a view of all stacks [T - size + 1, B, size, H, W], oldest frame first, of frames [T, B, H, W]."""
    return frames.unfold(0, size, 1).movedim(-1, 2)


def gather_stacks(frames: Tensor, start: Tensor, size: int, stride: int = 1) -> Tensor:
    """Returns stacks [N, size, ...] of every stride-th frame of [F, ...] from start [N] on."""
    rows = start.unsqueeze(1) + stride * torch.arange(size, device=start.device)  # [N, S]
    # On a CPU, one index over whole frames is a quarter faster than two.
    return frames.index_select(0, rows.flatten()).view(*rows.shape, *frames.shape[1:])


def blank_young(stacks: Tensor, age: Tensor) -> Tensor:
    """Blanks stacks [N, S, H, W] like `blank`; on a CPU in place, since few stacks need it."""
    if age.device.type != "cpu":
        return blank(stacks, age)
    young = (age < stacks.shape[1] - 1).nonzero().squeeze(1)
    if len(young):
        stacks[young] = blank(stacks[young], age[young])
    return stacks


def blank(stacks: Tensor, age: Tensor) -> Tensor:
    """Returns stacks [..., S, H, W], oldest frame first, with zeros for frames of earlier episodes.

    age [...]: rows from the episode's first row to the newest frame.
    """
    size = stacks.shape[-3]
    distance = torch.arange(size - 1, -1, -1, device=age.device)  # from each frame to the newest
    return stacks * (age.unsqueeze(-1) >= distance)[..., None, None]


def is_exporting() -> bool:
    """Returns whether PyTorch is recording a network's operations for an export.

    Then the network may use PyTorch's public operations only."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]


def interleaved(images: Tensor) -> Tensor:
    """Returns the same images [..., C, H, W], in channels-last memory if they are uint8 with 2 to 4 channels on a CPU.

    Convolutions need this layout. OpenCV interleaves planes several times as fast as PyTorch."""
    if images.dtype != torch.uint8 or images.device.type != "cpu" or images.dim() < 3 or not images.numel():
        return images
    if is_exporting():  # an export cannot record OpenCV
        return images
    *leading, C, H, W = images.shape
    pixels = images.movedim(-3, -1)  # [..., H, W, C]
    if not 2 <= C <= MAX_INTERLEAVED or pixels.is_contiguous():
        return images
    result = torch.empty((*leading, H, W, C), dtype=torch.uint8)
    _interleave(images, result)
    return result.movedim(-1, -3)


def _interleave(images: Tensor, result: Tensor) -> None:
    """Writes images [..., C, H, W] into result [..., H, W, C]."""
    C, _, W = images.shape[-3:]
    planes = images.movedim(-3, 0)
    if planes[0].is_contiguous():  # a rollout's frames, which are consecutive in memory
        cv2.merge(list(planes.reshape(C, -1, W).numpy()), result.view(-1, W, C).numpy())
    elif images.is_contiguous() or (images.dim() == 4 and images[0].is_contiguous()):  # or with masks in between
        for image, to in zip(images.flatten(0, -4).numpy(), result.flatten(0, -4).numpy(), strict=True):
            cv2.merge(list(image), to)
    elif images.dim() > 4:  # some columns of a rollout: row by row
        for part, to in zip(images, result, strict=True):
            _interleave(part, to)
    else:
        result.copy_(images.movedim(-3, -1))
