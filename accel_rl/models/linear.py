"""A linear layer that multiplies by oneDNN where that is the faster way.

PyTorch multiplies float32 matrices by MKL on a CPU, which leaves much of an AMD processor idle: the hidden layer of
Nature-CNN (3136 -> 512) takes half the time by oneDNN on an EPYC, for a batch of 80 forward and backward alike. PyTorch
has it for its compiler, as an operation without a gradient; here it gets one.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@cache
def prefers_onednn() -> bool:
    """Whether this is such a processor, and PyTorch has the operation."""
    try:
        is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return is_amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [N, K], weight [M, K], bias [M] -> x weight^T + bias [N, M]; float32 on a CPU, not differentiable."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        by_input = onednn_linear(gradient, weight.t(), None)
        return by_input, onednn_linear(gradient.t(), x.t(), None), gradient.sum(0)


class WideLinear(nn.Linear):
    """For large layers; x [N, K] -> [N, M]. Small ones gain nothing."""

    def forward(self, x: Tensor) -> Tensor:
        is_float32 = x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)
        if not (is_float32 and x.device.type == "cpu" and prefers_onednn()):
            return super().forward(x)
        if not torch.is_grad_enabled():
            return onednn_linear(x, self.weight, self.bias)
        return _Differentiable.apply(x, self.weight, self.bias)  # type: ignore[no-any-return,no-untyped-call]
