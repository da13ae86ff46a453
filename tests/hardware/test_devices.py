"""Which devices a setting names."""

from typing import Any

import pytest
import torch

from accel_rl.errors import UsageError
from accel_rl.hardware.devices import find_devices


def have_gpus(num: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num)


@pytest.mark.parametrize(
    ("names", "learners_per_gpu", "expected"),
    [
        ("cpu", 1, "cpu"),
        ("cpu, cpu", 1, "cpu cpu"),
        (["cpu"] * 3, 1, "cpu cpu cpu"),
        ("auto", 1, "cuda:0"),
        ("auto", 2, "cuda:0 cuda:0"),
        ("cuda", 1, "cuda:0"),
        ("all", 1, "cuda:0 cuda:1 cuda:2 cuda:3"),
        ("0-2", 1, "cuda:0 cuda:1 cuda:2"),
        ("2,0", 1, "cuda:2 cuda:0"),
        ([3, 1], 1, "cuda:3 cuda:1"),
        ("cuda:1-2", 2, "cuda:1 cuda:1 cuda:2 cuda:2"),
        ("cuda:0,cuda:3", 1, "cuda:0 cuda:3"),
    ],
)
def test_lists_of_devices(names: Any, learners_per_gpu: int, expected: str, monkeypatch: Any) -> None:
    """Would catch a list that is read otherwise than it is meant, or a saved one that is not read back as it was."""
    have_gpus(4, monkeypatch)
    devices = find_devices(names, learners_per_gpu)
    assert devices == tuple(expected.split())
    assert find_devices(devices, learners_per_gpu) == devices
    assert find_devices(",".join(devices), learners_per_gpu) == devices


@pytest.mark.parametrize(
    ("num_gpus", "names", "learners_per_gpu", "message"),
    [
        (0, "all", 1, "devices='all', but there is no GPU here; use --devices cpu,cpu for two learners"),
        (0, "0-3", 1, "devices='0-3', but there is no GPU here; use --devices cpu,cpu"),
        (4, "2-5", 1, "devices='2-5', but there is no GPU 4-5 here; use some of 0-3"),
        (1, "cuda:0,cuda:2", 1, "there is no GPU 2 here; use some of 0$"),
        (4, "0,1,0", 1, "names GPU 0 2 times; name it once, and --learners-per-gpu 2 puts 2 on each"),
        (4, "0,1,0", 2, "names GPU 0 2 times; name it once"),
        (4, "cpu,cuda:0", 1, "learners are all on the CPU or all on GPUs, as in cpu,cpu or cuda:0,cuda:1"),
        (4, "cpu,cpu", 3, "devices='cpu,cpu' with learners_per_gpu=3: that is for GPUs; .* --devices cpu,cpu,cpu$"),
        (0, "auto", 2, "devices='auto' with learners_per_gpu=2: that is for GPUs; .* --devices cpu,cpu$"),
        (4, "all", 0, "learners_per_gpu=0 must be at least 1"),
        (4, "", 1, "devices='' must be auto, all, cpu,cpu, or GPUs as in 0-3 or cuda:0,cuda:2"),
        (4, "0,all", 1, "must be auto, all"),
        (4, "cuda:1,auto", 1, "must be auto, all"),
        (4, "3-1", 1, "must be auto, all"),
        (4, "mps", 1, "must be auto, all"),
    ],
)
def test_devices_that_are_not_there(
    num_gpus: int, names: str, learners_per_gpu: int, message: str, monkeypatch: Any
) -> None:
    """Would catch learners that start, and fail one by one, instead of one clear line."""
    have_gpus(num_gpus, monkeypatch)
    with pytest.raises(UsageError, match=message):
        find_devices(names, learners_per_gpu)
