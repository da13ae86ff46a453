"""Stacks of frames: blank what is older than the episode, and interleave the frames for convolutions."""

import cv2
import torch
from torch import Tensor

MOST_INTERLEAVED = 4  # channels; OpenCV has fast kernels for 2 to 4


def blank(stacks: Tensor, age: Tensor) -> Tensor:
    """Returns stacks [..., S, H, W], oldest frame first, with zeros for frames from before the episode's first row.

    age [...]: rows since that one, of the newest frame.
    """
    size = stacks.shape[-3]
    distance = torch.arange(size - 1, -1, -1, device=age.device)  # of each frame from the newest
    return stacks * (age.unsqueeze(-1) >= distance)[..., None, None]


def interleaved(images: Tensor) -> Tensor:
    """Returns the same images [..., C, H, W], in channels-last memory if they are uint8 with 2 to 4 channels on a CPU.

    Convolutions want them so. OpenCV interleaves planes several times as fast as PyTorch."""
    is_small = images.dim() >= 3 and 2 <= images.shape[-3] <= MOST_INTERLEAVED
    if images.dtype != torch.uint8 or images.device.type != "cpu" or not is_small or not images.numel():
        return images
    pixels = images.movedim(-3, -1)  # [..., H, W, C]
    if pixels.is_contiguous():
        return images
    *_, W, C = pixels.shape
    result = torch.empty(pixels.shape, dtype=torch.uint8)
    planes = images.unbind(-3)
    if planes[0].is_contiguous():  # of a rollout's frames, which lie one behind the other
        cv2.merge([plane.reshape(-1, W).numpy() for plane in planes], result.view(-1, W, C).numpy())
    elif images.is_contiguous():
        for image, to in zip(images.flatten(0, -4).numpy(), result.flatten(0, -4).numpy(), strict=True):
            cv2.merge(list(image), to)
    else:
        result.copy_(pixels)
    return result.movedim(-1, -3)
