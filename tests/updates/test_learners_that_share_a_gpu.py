"""Tests of how learners that may share a GPU sum gradients. CUDA and the other learners are stubbed."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_rl.hardware.devices import DeviceId
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.updates import all_reduce, shared_sum
from accel_rl.updates.shared_sum import SharedSum
from tests.updates.reduce_process import CASES, run, together


@pytest.mark.parametrize(
    ("own_nccl", "others", "uses_nccl"),
    [
        (True, [(True, "b")], True),
        (True, [(True, "a")], False),  # the same GPU, which both call cuda:0
        (True, [(True, "b"), (True, "b")], False),
        (True, [(False, "b")], False),
        (False, [(False, "b")], False),
        (True, [], True),
    ],
)
def test_nccl_is_for_learners_with_a_gpu_of_their_own(
    own_nccl: bool, others: list[tuple[bool, str]], uses_nccl: bool, monkeypatch: Any
) -> None:
    """Learners use NCCL only if each has its own GPU, and all of them decide the same."""

    def gather(found: list[Any], own: Any) -> None:
        found[:] = [own, *others]

    monkeypatch.setattr(dist, "get_world_size", lambda: 1 + len(others))
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl" if own_nccl else "cpu:gloo,cuda:gloo")
    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(all_reduce, "device_id", lambda device: DeviceId("a", "a"))
    assert all_reduce._can_use_nccl(torch.device("cuda:0")) == uses_nccl


@pytest.mark.parametrize("pins", [True, False])
def test_a_sum_over_learners_of_one_gpu_waits_for_the_gpu_first(pins: bool, monkeypatch: Any) -> None:
    """A shared sum waits for the GPU before the learners meet, and unpins its memory once at the end."""
    events: list[str] = []
    layout = {"vectors": ((2, 6), "float32"), "sum": ((6,), "float32"), "token": ((16,), "|u1")}
    memory = SharedArrays(layout)  # type: ignore[arg-type]
    vectors, total = memory.arrays["vectors"], memory.arrays["sum"]

    def other_learner(flag: Any) -> None:
        """Writes its vector at the first meeting of a call, and its half of the sum at the second."""
        events.append("meet")
        if events.count("meet") % 2:
            vectors[1, :5] = [10, 20, 30, 40, 50]
        else:
            total[2:5] = vectors[:, 2:5].sum(0)

    class Stream:
        def synchronize(self) -> None:
            events.append("wait for the GPU")

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "all_reduce", other_learner)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("wait for all streams"))
    monkeypatch.setattr(shared_sum, "pin", lambda shared: events.append("pin") or (shared.address if pins else None))
    monkeypatch.setattr(shared_sum, "unpin", lambda address: events.append("unpin"))
    summed = SharedSum(memory, torch.device("cuda:0"))
    for scale in (1, 2):
        vector = scale * torch.arange(5.0)
        summed(vector)
        assert vector.tolist() == [10 + 0, 20 + scale, 30 + 2 * scale, 40 + 3 * scale, 50 + 4 * scale]
    summed.close()
    summed.close()
    ends = ["wait for all streams", "unpin"] if pins else []
    assert events == ["pin", *["wait for the GPU", "meet", "meet"] * 2, *ends]


@pytest.mark.gpu
@pytest.mark.multiprocess
@pytest.mark.slow
def test_learners_of_one_gpu_stay_the_same() -> None:
    """Two learners on one GPU keep identical parameters."""
    first, second = run(together, 2, "cuda:0")
    for name in CASES:
        for one, other in zip(first[name], second[name], strict=True):
            assert all(torch.equal(one[term], other[term]) for term in one if term != "errors"), name
