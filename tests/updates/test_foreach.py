"""Tests of copying many tensors in few kernel launches."""

import pytest
import torch

from accel_rl.updates.foreach import copy_tensors


def make(device: str) -> list[torch.Tensor]:
    """Returns dense, strided, channels-last, empty and 0-d tensors of three dtypes."""
    numbers = torch.arange(240.0, device=device)
    return [
        numbers[:6].clone().view(2, 3),
        numbers.view(20, 12)[:, 3:5],
        numbers.view(2, 4, 5, 6).contiguous(memory_format=torch.channels_last),
        numbers[:0].clone(),
        numbers[7].clone(),
        numbers[:4].long(),
        numbers[:4].long().t(),
        numbers[:9].byte(),
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_every_tensor_is_copied(device: str) -> None:
    """Every tensor is copied to its target, whatever its dtype and strides."""
    sources = make(device)
    same = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in sources]
    others = [torch.empty(x.shape, dtype=torch.float64, device=device) for x in sources]
    for targets in (same, others, [torch.empty_like(x).contiguous() for x in sources]):
        copy_tensors(targets, iter(sources))
        assert all(
            torch.equal(target, source.to(target.dtype)) for target, source in zip(targets, sources, strict=True)
        )
    copy_tensors([], [])
    with pytest.raises(ValueError, match="zip"):
        copy_tensors(same, sources[:-1])


@pytest.mark.gpu(fake=True)
def test_tensors_of_one_dtype_go_together() -> None:
    """Tensors of one dtype and layout are copied in one launch."""
    from tests.fake_cuda import counting

    sources = make("cuda:0")
    targets = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in sources]
    with counting() as counts:
        copy_tensors(targets, sources)
    assert counts.launches == 4, counts.kernels  # float32, strided float32, int64, uint8
