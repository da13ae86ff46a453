"""Tests of the heads of auxiliary tasks against PyTorch's own layers."""

import torch
from torch import nn

from accel_rl.models.auxiliary import NUM_MAPS, PixelControlHead


def test_pixel_control_is_a_dueling_deconvolution() -> None:
    """Pixel control's values are V + A - mean(A) over actions, for each cell."""
    torch.manual_seed(0)
    head = PixelControlHead(7, num_actions=3, cells=(6, 8))
    nn.init.normal_(head.deconvolution.bias)  # type: ignore[arg-type]
    features = torch.randn(5, 7)
    maps = nn.functional.linear(features, head.hidden.weight, head.hidden.bias).relu()
    both = head.deconvolution(maps.view(5, 2, 3, NUM_MAPS).permute(0, 3, 1, 2))
    value, advantage = both[:, :1], both[:, 1:]
    expected = value + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(head(features), expected, rtol=1e-4, atol=1e-5)
    assert (expected < 0).any()
