"""Which machine it was, which part of it is used, and where the figures go."""

import importlib.metadata
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.machine import available_cpus, physical_cores

PACKAGES = ("torch", "ale-py", "gymnasium", "numpy", "opencv-python-headless", "envpool")


def machine() -> dict[str, Any]:
    """Names the machine, as far as this process may use it: figures mean nothing without it."""
    model = platform.processor() or platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    import torch

    return {
        "cpu": model,
        "cores": len(physical_cores(available_cpus())),
        "logical_cpus": len(available_cpus()),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(machine: dict[str, Any]) -> str:
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"{machine['cpu']}, cores: {machine['cores']}, {gpus}; Python {machine['python']}, {packages}"


def first_cores(num_cores: int | None) -> list[list[int]]:
    """The first of the cores that this process may use (None: all of them), each a list of its processors.

    Raises UsageError if there are not so many."""
    cores = physical_cores(available_cpus())
    if num_cores is not None and not 1 <= num_cores <= len(cores):
        raise UsageError(f"cores={num_cores} must be from 1 to {len(cores)}, the cores that this process may use")
    return cores[:num_cores]


def shown(options: Any) -> dict[str, Any]:
    """A benchmark's options as its file has them: without folders of the machine that made it."""
    return {name: None if isinstance(value, Path) else value for name, value in asdict(options).items()}


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
