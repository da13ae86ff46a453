"""Finds the devices that a setting names, and pins memory so that a GPU reads it directly."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.hardware.topology import parse_cpus, show_cpus

logger = logging.getLogger("accel_rl")


def find_device(name: str, setting: str = "device") -> str:
    """Returns the device that a name stands for (auto: the first GPU, or the CPU).

    Raises UsageError if it is no device's name, or if there is no such GPU here. setting: names it in errors."""
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"{setting}={name!r} must be auto, cpu or cuda:<number>") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"{setting}={name!r} must be auto, cpu or cuda:<number>")
    if device.type == "cuda" and (device.index or 0) >= _num_gpus():
        usable = ["cpu", *(f"cuda:{index}" for index in range(_num_gpus()))]
        flag = f"--{setting.replace('_', '-')}"
        raise UsageError(f"{setting}={name!r}, but there is no such GPU here; use {flag} {' or '.join(usable)}")
    return name


def find_devices(names: str | Sequence[str | int], learners_per_gpu: int = 1) -> tuple[str, ...]:
    """Returns each learner's device, by rank: cpu as often as it is named, or each of the GPUs learners_per_gpu times.

    GPUs are named as in cuda:0,cuda:2 or cuda:0-3 or 0-3, or as all; auto is the first one, or cpu where there is none.
    PyTorch numbers them: where CUDA_VISIBLE_DEVICES is set, 0 is the first of those that it lists. The function returns
    its own results unchanged. Raises UsageError for anything else, and for GPUs that are not here."""
    text = names if isinstance(names, str) else ",".join(map(str, names))
    shown, words = f"devices={text!r}", [word.strip() for word in text.split(",")]
    if learners_per_gpu < 1:
        raise UsageError(f"learners_per_gpu={learners_per_gpu} must be at least 1")
    if words == ["auto"]:
        words = [find_device("auto")]
    if "cpu" in words:
        if set(words) != {"cpu"}:
            raise UsageError(f"{shown}: learners are all on the CPU or all on GPUs, as in cpu,cpu or cuda:0,cuda:1")
        if learners_per_gpu > 1:
            raise UsageError(
                f"{shown} with learners_per_gpu={learners_per_gpu}: that is for GPUs; name cpu once for each learner, "
                f"as in --devices {','.join(['cpu'] * learners_per_gpu)}"
            )
        return tuple(words)
    gpus = _find_gpus(words, shown)
    times = Counter(gpus)
    if set(times.values()) == {learners_per_gpu}:
        return tuple(f"cuda:{gpu}" for gpu in gpus)
    for gpu, num in times.items():
        if num > 1:
            raise UsageError(
                f"{shown} names GPU {gpu} {num} times; name it once, and --learners-per-gpu {num} puts {num} on each"
            )
    return tuple(f"cuda:{gpu}" for gpu in gpus for _ in range(learners_per_gpu))


def _find_gpus(words: list[str], shown: str) -> list[int]:
    """Returns the numbers of the GPUs that the words name, in their order."""
    num_gpus = _num_gpus()
    numbers = ["0" if word == "cuda" else word.removeprefix("cuda:") for word in words]
    try:
        gpus = [*range(num_gpus)] if words == ["all"] else [gpu for number in numbers for gpu in parse_cpus(number)]
    except ValueError:
        raise UsageError(f"{shown} must be auto, all, cpu,cpu, or GPUs as in 0-3 or cuda:0,cuda:2") from None
    if not num_gpus:
        raise UsageError(f"{shown}, but there is no GPU here; use --devices cpu,cpu for two learners")
    if absent := {gpu for gpu in gpus if gpu >= num_gpus}:
        raise UsageError(
            f"{shown}, but there is no GPU {show_cpus(absent)} here; use some of {show_cpus(range(num_gpus))}"
        )
    return gpus


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_node(device: str) -> int | None:
    """Returns the NUMA node that the GPU is attached to; None for the CPU, and where the system does not say."""
    import torch

    if device == "cpu":
        return None
    gpu: Any = torch.cuda.get_device_properties(device)
    try:
        address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (AttributeError, OSError, ValueError):  # older releases of torch do not know the address
        return None
    return node if node >= 0 else None


def pin(memory: SharedArrays) -> int | None:
    """Pins the shared memory, so that the GPU reads it directly; returns its address, or None if that failed."""
    import torch

    address, size = memory.address, memory.size
    error = torch.cuda.cudart().cudaHostRegister(address, size, 0)  # type: ignore[no-untyped-call]
    if int(error) != 0:
        logger.warning("the shared memory cannot be pinned (CUDA error %d): transfers are slower", int(error))
        return None
    return address


def unpin(address: int) -> None:
    """Undoes `pin`."""
    import torch

    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
