"""The linear layer by oneDNN against PyTorch's own."""

import pytest
import torch
from torch import nn

from accel_rl.models import linear
from accel_rl.models.linear import WideLinear

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("num_samples", [1, 8, 80])
def test_outputs_and_gradients_are_those_of_pytorch(num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a transposed factor, a lost bias, or gradients that replace what was there."""
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    torch.manual_seed(0)
    ours, theirs = WideLinear(96, 40), nn.Linear(96, 40)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(num_samples, 96)
    for _ in range(2):
        gradients = []
        for layer in (ours, theirs):
            seen = x.clone().requires_grad_()
            layer(seen).square().sum().backward()
            gradients.append([seen.grad, *(parameter.grad for parameter in layer.parameters())])
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_other_numbers_go_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch float64, or bfloat16 by autocast, that reaches an operation for float32."""
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    monkeypatch.setattr(linear, "onednn_linear", lambda *_: pytest.fail("not for these"))
    layer = WideLinear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 8)).dtype == torch.bfloat16
    assert layer.double()(torch.randn(2, 8, dtype=torch.float64)).dtype == torch.float64
