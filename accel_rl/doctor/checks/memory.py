"""Pinned memory: whether it is, whether transfers arrive, and how fast they are."""

import time
from typing import Any

import torch
from torch import Tensor

from accel_rl.doctor.probe import Probe, check
from accel_rl.hardware.devices import pin, unpin
from accel_rl.hardware.shared_memory import SharedArrays

NUM_BYTES = 64 << 20
NUM_COPIES = 5


@check("pinned memory", "transfers from and to shared memory that is pinned with what was sent")
def _pinned_memory(probe: Probe) -> None:
    memory = SharedArrays({"values": ((NUM_BYTES,), "uint8")})
    values = torch.from_numpy(memory.arrays["values"])
    values.copy_(torch.arange(256, dtype=torch.uint8).repeat(NUM_BYTES // 256))
    expected = values.clone()
    there = torch.empty_like(values, device=probe.device)
    pageable = f"{_rate(there, values, probe.device):.1f} up, {_rate(values, there, probe.device):.1f} down"
    first, second = pin(memory), pin(memory)  # as two users of one store do
    probe.true("CUDA pins the memory", first is not None and first == second)
    if first is None:
        memory.close()
        return
    probe.true("it is pinned", _is_pinned(values))
    up = _rate(there, values, probe.device)
    values.zero_()
    down = _rate(values, there, probe.device)
    probe.equal("what came back", values, expected)
    unpin(first)
    probe.true("it stays pinned for its other user", _is_pinned(values))
    unpin(first)
    probe.true("it is pageable again in the end", not _is_pinned(values))
    torch.ones(1, device=probe.device).add_(1)  # an error that was left behind would be raised here
    probe.details.append(f"GB/s: pinned {up:.1f} up, {down:.1f} down; pageable {pageable}")
    memory.close()


def _is_pinned(values: Any) -> bool:
    return bool(values.is_pinned())


def _rate(target: Tensor, source: Tensor, device: torch.device) -> float:
    """Returns the GB/s of copies of source to target; the first one is not counted."""
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(NUM_COPIES):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    return NUM_COPIES * source.nbytes / (time.perf_counter() - start) / 1e9
