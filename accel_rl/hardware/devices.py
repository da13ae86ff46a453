"""Finds the devices that a setting names, and pins memory for direct access by a GPU."""

import contextlib
import logging
import re
import socket
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accel_rl.errors import UsageError
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.hardware.topology import parse_cpus, show_cpus

logger = logging.getLogger("accel_rl")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")  # as in sm_90a: kind, major, minor, suffix

# ---- the devices that a setting names ----


def find_device(name: str, setting: str = "device") -> str:
    """Returns the full name of a device: cpu, or cuda with a number. auto: the first GPU that can be used, or the CPU.

    Raises UsageError for any other name, and for a GPU that is absent or has no kernels in this build of PyTorch.
    setting: its name in errors."""
    if name == "auto":
        return _first_device(setting)
    match = re.fullmatch(r"cpu(?::0)?|cuda(?::([0-9]{1,3}))?", name)
    if not match:
        raise UsageError(f"{setting}={name!r} must be auto, cpu or cuda:<number>")
    if name.startswith("cpu"):
        return "cpu"
    gpu, flag = int(match[1] or 0), f"--{setting.replace('_', '-')}"
    if gpu >= num_gpus():
        usable = ["cpu", *(f"cuda:{index}" for index in range(num_gpus()))]
        raise UsageError(f"{setting}={name!r}, but there is no such GPU here; use {flag} {' or '.join(usable)}")
    if reason := _missing_kernels(gpu):
        raise UsageError(f"{setting}={name!r}: {reason}; or use {flag} auto")
    return f"cuda:{gpu}"


def _first_device(setting: str) -> str:
    """Returns the first GPU that this build of PyTorch has kernels for; if there is none, the CPU."""
    gpus = range(num_gpus())
    device = next((f"cuda:{gpu}" for gpu in gpus if not _missing_kernels(gpu)), "cpu")
    if gpus and device != "cuda:0":
        logger.warning("%s=auto is %s: %s", setting, device, _missing_kernels(0))
    return device


def find_devices(names: str | Sequence[str | int], learners_per_gpu: int = 1) -> tuple[str, ...]:
    """Returns each learner's device, by rank: cpu as often as it is named, or each of the GPUs learners_per_gpu times.

    GPUs are named as in cuda:0,cuda:2 or cuda:0-3 or 0-3 or all. auto is the first GPU, or cpu if there is none. The
    numbers are PyTorch's, within CUDA_VISIBLE_DEVICES. A result of this function is a valid argument, and is returned
    unchanged. Raises UsageError for anything else, and for absent GPUs."""
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
    """Returns the numbers of the GPUs in words, in their order."""
    count = num_gpus()
    numbers = ["0" if word == "cuda" else word.removeprefix("cuda:") for word in words]
    try:
        gpus = [*range(count)] if words == ["all"] else [gpu for number in numbers for gpu in parse_cpus(number)]
    except ValueError:
        raise UsageError(f"{shown} must be auto, all, cpu,cpu, or GPUs as in 0-3 or cuda:0,cuda:2") from None
    if not count:
        raise UsageError(f"{shown}, but there is no GPU here; use --devices cpu,cpu for two learners")
    if absent := {gpu for gpu in gpus if gpu >= count}:
        raise UsageError(
            f"{shown}, but there is no GPU {show_cpus(absent)} here; use some of {show_cpus(range(count))}"
        )
    if reasons := {gpu: reason for gpu in gpus if (reason := _missing_kernels(gpu))}:
        others = [gpu for gpu in range(count) if not _missing_kernels(gpu)]
        way_out = f"or use --devices {show_cpus(others)}" if others else "or learn on the CPU"
        raise UsageError(f"{shown}: {next(iter(reasons.values()))}; {way_out}")
    return gpus


def num_gpus() -> int:
    """Returns how many GPUs this process sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_has_bf16(device: str) -> bool:
    """Returns whether the GPU has instructions for bfloat16; older GPUs emulate it."""
    import torch

    return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (8, 0)


# ---- GPUs that this build of PyTorch has no kernels for ----


def _missing_kernels(gpu: int) -> str | None:
    """Returns a message if this build of PyTorch has no kernels for the GPU, with a build that has them; else None.

    A build that lists no architectures, for CPUs or for AMD's GPUs, counts as having kernels."""
    import torch

    architectures = {arch: match for arch in torch.cuda.get_arch_list() if (match := ARCHITECTURE.fullmatch(arch))}
    if not architectures:
        return None
    with warnings.catch_warnings():  # PyTorch's own warnings take several lines, and cover all GPUs
        warnings.simplefilter("ignore")
        capability = torch.cuda.get_device_capability(gpu)
        name = torch.cuda.get_device_name(gpu)
    if any(_runs_on(match, *capability) for match in architectures.values()):
        return None
    # docs/hardware.md has the table and its source.
    wheel = "CUDA 12.6 (cu126)" if capability < (7, 5) else "a newer CUDA"
    return (
        f"this build of PyTorch ({torch.__version__}) has no kernels for cuda:{gpu}, {name} (sm_{capability[0]}"
        f"{capability[1]}), only for {', '.join(architectures)}; install PyTorch's wheel for {wheel}"
    )


def _runs_on(architecture: re.Match[str], major: int, minor: int) -> bool:
    """Returns whether code for this ARCHITECTURE runs on a GPU of this compute capability (CUDA C++ Programming Guide,
    "Compute Capabilities" and "Feature sets").

    Machine code (sm) runs on its own capability and on larger ones of the same major version, PTX (compute) on all
    larger ones. With the suffix a, either runs on this one capability only; with f, on its major version."""
    kind, *numbers, suffix = architecture.groups()
    own, capability = (int(numbers[0]), int(numbers[1])), (major, minor)
    if suffix == "a":
        return capability == own
    return capability >= own and (major == own[0] or (kind == "compute" and not suffix))


# ---- where a GPU is ----


class DeviceId(NamedTuple):
    """An identifier of a device that is unique among all machines, and does not depend on numbers within a process.

    hardware: the physical GPU, or the CPU's machine. memory: the unit with separate memory, perhaps a part of a divided
    GPU (MIG)."""

    hardware: str
    memory: str


def device_id(device: str) -> DeviceId:
    import torch

    try:
        machine = BOOT_ID.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    if device == "cpu":
        return DeviceId(machine, machine)
    gpu: Any = torch.cuda.get_device_properties(device)
    uuid = str(getattr(gpu, "uuid", device))
    address = _pci_address(gpu) or uuid
    return DeviceId(f"{machine} {address}", f"{machine} {address} {uuid}")


def _pci_address(gpu: Any) -> str | None:
    """Returns a GPU's address on the PCI bus from its properties; None with older releases of torch."""
    try:
        return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    except AttributeError:
        return None


def gpu_node(device: str) -> int | None:
    """Returns the GPU's NUMA node; None for the CPU, or if the system does not know it."""
    import torch

    if device == "cpu":
        return None
    address = _pci_address(torch.cuda.get_device_properties(device))
    try:
        node = int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


# ---- pinned memory ----


# Pinned memory by address, with an entry for each user. The references keep it mapped until it is unpinned.
_pinned: dict[int, list[SharedArrays]] = {}


def pin(memory: SharedArrays) -> int | None:
    """Pins the shared memory for direct access by the GPU; returns its address, or None if that failed.

    Each user of the memory calls this, and `unpin` at the end. CUDA itself would refuse to pin the memory twice."""
    import torch

    address, size = memory.address, memory.size
    if address not in _pinned:
        error = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))  # type: ignore[no-untyped-call]
        if error != 0:
            _clear_last_error()
            logger.warning("the shared memory cannot be pinned (CUDA error %d): transfers are slower", error)
            return None
    _pinned.setdefault(address, []).append(memory)
    return address


def unpin(address: int) -> None:
    """Undoes one `pin`; after the last one the memory is pageable again."""
    import torch

    _pinned[address].pop()
    if not _pinned[address]:
        del _pinned[address]
        if int(torch.cuda.cudart().cudaHostUnregister(address)) != 0:  # type: ignore[no-untyped-call]
            _clear_last_error()


def _clear_last_error() -> None:
    """Makes CUDA forget an error that has been handled.

    This thread's next kernel launch would raise the error, which clears it. So this function launches a kernel."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(1)


def restore_generator(generator: Any, state: Any, what: str) -> None:
    """Restores a torch.Generator's saved state, unless that is from another kind of device; then it logs a warning.

    what: the numbers that the generator draws. The states of CPUs and GPUs differ in size."""
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
    else:
        logger.warning("%s restart from their seed: the checkpoint was written on another kind of device", what)
