"""Calls oneDNN's products and convolutions directly, with a ReLU fused and with weights in oneDNN's own layout.

PyTorch has these operations only for its compiler, private and without gradients. Only this module calls them.
Each is compared once with plain PyTorch, on a small batch. If it is missing, refuses the call or computes something
else, `convolves` or `multiplies` returns False, and the layers (layers.py) use plain PyTorch.

All tensors are on the CPU and of one dtype, float32 or bfloat16; images [N, C, H, W] are in channels-last memory.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.hardware.topology import read_file

logger = logging.getLogger("accel_rl")

Pair = tuple[int, int]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, *, relu: bool) -> Tensor:
    """Returns the convolution [N, M, H', W'] of x [N, C, H, W] with weight [M, C, h, w], perhaps packed; bias [M]."""
    activation = "relu" if relu else "none"
    return torch.ops.mkldnn._convolution_pointwise(  # type: ignore[no-any-return]
        x, weight, bias, padding, stride, (1, 1), 1, activation, [], ""
    )


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Returns x weight^T + bias [N, M] of x [N, K], weight [M, K], perhaps packed, and bias [M]."""
    return torch.ops.mkldnn._linear_pointwise(  # type: ignore[no-any-return]
        x, weight, bias, "relu" if relu else "none", [], ""
    )


def pack_convolution(weight: Tensor, stride: Pair, padding: Pair, shape: Sequence[int]) -> Tensor:
    """Returns weight [M, C, h, w] in the layout in which images of this shape are convolved fastest."""
    return torch.ops.mkldnn._reorder_convolution_weight(  # type: ignore[no-any-return]
        weight, padding, stride, (1, 1), 1, list(shape)
    )


def pack_product(weight: Tensor, num_samples: int) -> Tensor:
    """Returns weight [M, K] in the layout in which num_samples rows are multiplied fastest."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, num_samples)  # type: ignore[no-any-return]


# ---- operations that work on this machine ----


@cache
def convolves(dtype: torch.dtype) -> bool:
    """Returns whether `convolve` and `pack_convolution` work as they are called here."""
    return _works("convolutions", dtype, _try_convolutions)


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Returns whether `multiply` and `pack_product` work as they are called here."""
    return _works("matrix products", dtype, _try_products)


@cache
def prefers_products() -> bool:
    """Returns whether `multiply` is faster in float32 than PyTorch's own product, which is MKL's.

    MKL leaves much of an AMD processor idle: the hidden layer of Nature-CNN (3136 -> 512) takes half the time with
    oneDNN on an EPYC, for a batch of 80, both forward and backward."""
    return "AuthenticAMD" in read_file(Path("/proc/cpuinfo")) and multiplies(torch.float32)


def _works(what: str, dtype: torch.dtype, trials: Callable[[torch.dtype], list[tuple[Tensor, Tensor]]]) -> bool:
    """Returns whether all pairs of found and expected results are equal within the dtype's precision; logs if not."""
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            if all(_is_close(found.float(), expected, 8 * torch.finfo(dtype).eps) for found, expected in trials(dtype)):
                return True
        reason = "its results differ"
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
    name = str(dtype).removeprefix("torch.")
    logger.info("%s in %s are PyTorch's own, and slower: oneDNN's cannot be used here (%s)", what, name, reason)
    return False


def _is_close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


def _try_convolutions(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    image = (torch.arange(2 * 6 * 5 * 4) % 7).view(2, 6, 5, 4).permute(0, 3, 1, 2)  # channels-last
    weight = (torch.arange(3 * 4 * 2 * 4) % 5 - 2.0).view(3, 4, 2, 4).permute(0, 3, 1, 2)
    bias, stride, padding = torch.tensor([1.0, -2.0, 3.0]), (2, 1), (1, 0)
    x, w, b = (tensor.to(dtype) for tensor in (image, weight, bias))
    expected = F.conv2d(image.float(), weight, bias, stride, padding)
    packed = pack_convolution(w, stride, padding, x.shape)
    return [
        (convolve(x, w, b, stride, padding, relu=False), expected),
        (convolve(x, packed, b, stride, padding, relu=True), expected.relu()),
    ]


def _try_products(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Tries the layers' products: forward, forward packed, and both gradients, which take transposed factors."""
    x, weight, bias = torch.arange(6.0).view(2, 3) - 2, torch.arange(12.0).view(4, 3) - 5, torch.arange(4.0)
    x_, weight_, bias_ = (tensor.to(dtype) for tensor in (x, weight, bias))
    expected = F.linear(x, weight, bias)
    return [
        (multiply(x_, weight_, bias_), expected),
        (multiply(x_, pack_product(weight_, 2), bias_, relu=True), expected.relu()),
        (multiply(x_, weight_[:3].t()), x @ weight[:3]),
        (multiply(x_.t(), weight_[:2].t()), x.t() @ weight[:2]),
    ]
