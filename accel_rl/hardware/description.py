"""Describes the machine on which figures are measured."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from accel_rl.hardware.instructions import read_instructions
from accel_rl.hardware.topology import available_cpus, physical_cores, read_file

PACKAGES = ("torch", "ale-py", "gymnasium", "numpy", "opencv-python-headless", "envpool")


def describe_machine(with_gpus: bool = True) -> dict[str, Any]:
    """Returns the properties that figures depend on: CPU, instructions, usable cores, GPUs, versions.

    with_gpus: reads the GPUs' names, which starts CUDA in this process."""
    import torch

    from accel_rl.hardware.devices import num_gpus

    instructions = read_instructions()
    return {
        "cpu": cpu_model(),
        "instructions": instructions.bf16 or instructions.kernels,
        "cores": len(physical_cores(available_cpus())),
        "logical_cpus": len(available_cpus()),
        "gpus": [torch.cuda.get_device_name(i) for i in range(num_gpus() if with_gpus else 0)],
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := package_version(name))},
    }


def cpu_model() -> str:
    """Returns the processor's name, if the system knows it."""
    lines = read_file(Path("/proc/cpuinfo")).splitlines()
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def package_version(package: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def format_machine(machine: dict[str, Any]) -> str:
    """Returns describe_machine's result as one line of text."""
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"{machine['cpu']}, cores: {machine['cores']}, {gpus}; Python {machine['python']}, {packages}"
