"""Tests of cumulative sums as a GPU computes them."""

import pytest
import torch

from accel_rl.hardware.cumulative_sum import cumulative_sum, sum_by_doubling


@pytest.mark.parametrize("size", [1, 2, 3, 6, 18, 63, 64, 65])
def test_doubling_adds_up_everything_before(size: int) -> None:
    """Doubling gives the cumulative sum along the last axis and leaves its argument unchanged."""
    values = torch.randint(100, (4, 3, size), generator=torch.Generator().manual_seed(size)).double()
    kept = values.clone()
    for found in (sum_by_doubling(values), cumulative_sum(values)):
        assert torch.equal(found, kept.cumsum(-1)) and torch.equal(values, kept)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_it_is_allowed_in_deterministic_runs(dtype: torch.dtype) -> None:
    """Sums of floats and of integers are computed on a GPU with --deterministic, where `cumsum` of floats raises."""
    values = (100 * torch.rand(5, 7, device="cuda:0")).to(dtype)
    torch.use_deterministic_algorithms(True)
    assert torch.allclose(cumulative_sum(values).cpu(), values.cpu().cumsum(-1))
