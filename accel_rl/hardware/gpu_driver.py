"""Finds NVIDIA's GPUs and driver without CUDA, and says why PyTorch finds no GPU."""

import re
import subprocess
from pathlib import Path

from accel_rl.hardware.devices import num_gpus
from accel_rl.hardware.topology import read_file

DRIVER = Path("proc/driver/nvidia/version")
PCI_DEVICES = Path("sys/bus/pci/devices")
NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"  # on the PCI bus


def has_nvidia_gpu(root: Path = Path("/")) -> bool:
    """Returns whether the machine has an NVIDIA GPU, according to its PCI bus or the driver."""
    vendors = [folder for folder in (root / PCI_DEVICES).glob("*") if read_file(folder / "vendor") == NVIDIA]
    on_bus = any(read_file(folder / "class").startswith(DISPLAY_CLASS) for folder in vendors)
    return on_bus or any((root / "proc/driver/nvidia/gpus").glob("*"))


def why_no_gpu() -> str:
    """Returns what `--device cuda` lacks here; an empty string if there is a GPU, even one with other problems."""
    import torch

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


def find_driver(root: Path = Path("/")) -> str:
    """Returns the version of NVIDIA's driver; an empty string if neither the kernel nor nvidia-smi knows it."""
    if found := re.search(r"\s(\d+\.[\d.]+)\s", read_file(root / DRIVER)):
        return found[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(output.split()), "")
