"""Probes of GPUs, their driver, NCCL, and bfloat16. They import PyTorch themselves, since it may be broken."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from accel_rl.doctor.finding import Finding, Problem
from accel_rl.errors import UsageError
from accel_rl.hardware.instructions import LIMITS, read_instructions

GB = 1 << 30
DRIVER = Path("proc/driver/nvidia/version")
PCI_DEVICES = Path("sys/bus/pci/devices")
NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"  # on the PCI bus
WHEEL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
WHICH_WHEEL = f"{WHEEL} (docs/hardware.md: which one fits a GPU)"


def gpus(root: Path = Path("/")) -> Finding:
    """Describes the GPUs that PyTorch sees; where it sees none, says why."""
    import torch

    from accel_rl.hardware.devices import find_device, gpu_node, num_gpus

    if not num_gpus():
        reason, is_there = why_no_gpu(), num_nvidia_gpus(root) > 0
        data = {"gpus": [], "hidden": is_there}
        if not is_there:
            return Finding(f"none: {reason}", data)
        return Finding(f"none, although there is one: {reason}", data, (Problem("warning", *_way_to_gpu()),))
    found, texts, problems = [], [], []
    for index in range(num_gpus()):
        properties = torch.cuda.get_device_properties(index)
        missing = ""
        try:
            find_device(f"cuda:{index}")
        except UsageError as error:
            missing = str(error)
            problems.append(Problem("warning", missing, WHICH_WHEEL))
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "numa_node": gpu_node(f"cuda:{index}"),
                "is_usable": not missing,
            }
        )
        texts.append(f"{properties.name}, {properties.total_memory / GB:.0f} GB, capability {found[-1]['capability']}")
    return Finding(f"{len(found)}: {'; '.join(texts)}", {"gpus": found, "hidden": False}, tuple(problems))


def num_nvidia_gpus(root: Path = Path("/")) -> int:
    """Returns how many of NVIDIA's GPUs the machine has, as far as its PCI bus or the driver tells."""
    vendors = [folder for folder in (root / PCI_DEVICES).glob("*") if _read(folder / "vendor") == NVIDIA]
    on_bus = sum(_read(folder / "class").startswith(DISPLAY_CLASS) for folder in vendors)
    return max(on_bus, len(list((root / "proc/driver/nvidia/gpus").glob("*"))))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def why_no_gpu() -> str:
    """Returns what `--device cuda` needs here; nothing if there is a GPU, whatever else may be wrong with it."""
    import torch

    from accel_rl.hardware.devices import num_gpus

    if num_gpus():
        return ""
    if torch.version.cuda is None:
        return (
            f"PyTorch {torch.__version__} is built for the CPU; --device cuda needs a build for CUDA, as in "
            "`pip install torch` (docs/hardware.md: which one)"
        )
    return (
        f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}) finds none; --device cuda needs an NVIDIA GPU and a "
        "driver that `nvidia-smi` can talk to, and CUDA_VISIBLE_DEVICES must not hide it"
    )


def _way_to_gpu() -> tuple[str, str]:
    """Returns why PyTorch does not see a GPU that is there, and the command that mends it."""
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built for the CPU, and leaves the GPU idle", WHICH_WHEEL
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides the GPU", "unset CUDA_VISIBLE_DEVICES"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "PyTorch does not see the GPU"
    except RuntimeError as error:
        reason = str(error).splitlines()[0].split(". ")[0]
    return reason, "nvidia-smi (it must list the GPU; in a container: docker run --gpus all)"


def driver() -> Finding:
    """Says which version of NVIDIA's driver is here, and for which CUDA PyTorch is built."""
    import torch

    found, cuda = find_driver(), torch.version.cuda
    text = f"{found or 'none'}; PyTorch {torch.__version__} is built for {f'CUDA {cuda}' if cuda else 'the CPU'}"
    return Finding(text, {"version": found or None, "torch": torch.__version__, "torch_cuda": cuda})


def find_driver(root: Path = Path("/")) -> str:
    """Returns the version of NVIDIA's driver; nothing where neither the kernel nor nvidia-smi tells it."""
    if found := re.search(r"\s(\d+\.[\d.]+)\s", _read(root / DRIVER)):
        return found[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        lines = []
    return lines[0] if lines else ""


def nccl() -> Finding:
    """Says whether learners on several GPUs can exchange gradients."""
    import torch
    import torch.distributed as dist

    from accel_rl.hardware.devices import num_gpus

    if not (dist.is_available() and dist.is_nccl_available()):
        problem = Problem("warning", "this build of PyTorch has no NCCL, which several GPUs need", WHICH_WHEEL)
        text = "not in this build of PyTorch; learners on CPUs use Gloo"
        return Finding(text, {"version": None}, (problem,) if num_gpus() > 1 else ())
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return Finding(f"{version}, for learners on several GPUs", {"version": version})


def bfloat16() -> Finding:
    """Says which instructions PyTorch computes bfloat16 with, on the CPU and on the first GPU."""
    from accel_rl.hardware.devices import gpu_has_bf16, num_gpus

    instructions, problems = read_instructions(), []
    for variable in LIMITS:
        if variable in instructions.why_no_bf16:
            problems.append(Problem("warning", instructions.why_no_bf16, f"unset {variable}"))
    text = f"CPU: {instructions.bf16 or f'none ({instructions.why_no_bf16})'}, kernels {instructions.kernels}"
    data: dict[str, Any] = {"cpu": instructions.bf16 or None, "cpu_kernels": instructions.kernels, "gpu": None}
    if num_gpus():
        data["gpu"] = gpu_has_bf16("cuda:0")
        text += f"; GPU: {'yes' if data['gpu'] else 'no (capability 8.0 or newer has it)'}"
    return Finding(text, data, tuple(problems))
