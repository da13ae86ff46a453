"""The linear layer with oneDNN against PyTorch's own, and its fallback."""

from typing import Any

import pytest
import torch
from torch import nn

from accel_rl.models import linear
from accel_rl.models.linear import WideLinear

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("num_samples", [1, 8, 80])
def test_outputs_and_gradients_are_those_of_pytorch(num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a transposed factor, a lost bias, or gradients that overwrite instead of adding up."""
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    torch.manual_seed(0)
    ours, theirs = WideLinear(96, 40), nn.Linear(96, 40)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(num_samples, 96)
    for _ in range(2):
        gradients = []
        for layer in (ours, theirs):
            inputs = x.clone().requires_grad_()
            layer(inputs).square().sum().backward()
            gradients.append([inputs.grad, *(parameter.grad for parameter in layer.parameters())])
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_other_dtypes_use_pytorchs_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch float64, or bfloat16 from autocast, passed to an operation for float32."""
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    monkeypatch.setattr(linear, "onednn_linear", lambda *_: pytest.fail("called for other dtypes"))
    layer = WideLinear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 8)).dtype == torch.bfloat16
    assert layer.double()(torch.randn(2, 8, dtype=torch.float64)).dtype == torch.float64


def other_signature(x: Any, weight: Any, bias: Any) -> Any:
    return x


def refuses(*arguments: Any) -> Any:
    raise RuntimeError("not for this processor")


def refuses_transposed(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    if not weight.is_contiguous():
        raise NotImplementedError("weights must be packed")
    return nn.functional.linear(x, weight, bias)


def forgets_the_bias(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    return nn.functional.linear(x, weight)


@pytest.mark.parametrize("operation", [other_signature, refuses, refuses_transposed, forgets_the_bias])
def test_an_operation_that_does_not_work_is_not_used(operation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a check that the operation exists only: another PyTorch may have it with another signature."""
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", operation, raising=False)
    assert not linear.onednn_works()
    monkeypatch.setattr(linear, "prefers_onednn", linear.onednn_works)
    layer, x = WideLinear(8, 4), torch.randn(2, 8)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias), rtol=0, atol=0)


def test_an_operation_that_is_missing_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an AttributeError from a PyTorch without the operation."""
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not linear.onednn_works()


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
def test_the_operation_of_this_pytorch_works() -> None:
    """Would catch a trial so strict that the faster way is never taken."""
    assert linear.onednn_works()
