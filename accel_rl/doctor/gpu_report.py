"""The table of the checks, what identifies a GPU, and the file for an issue."""

from collections.abc import Sequence
from pathlib import Path

import torch

from accel_rl.doctor.gpus import find_driver
from accel_rl.doctor.probe import CHECKS, Result, show_difference
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.version import __version__

NAME_WIDTH, DIFFERENCE_WIDTH = 36, 18

HEADER = f"{'check':{NAME_WIDTH}} {'result':8} {'worst difference':{DIFFERENCE_WIDTH}} {'seconds':>7}"


def show_row(result: Result) -> str:
    """Returns a check's row of the table."""
    worst = show_difference(result.worst) if result.worst else "-"
    row = f"{result.name:{NAME_WIDTH}} {result.outcome:8} {worst:{DIFFERENCE_WIDTH}} {result.seconds:7.1f}"
    return "  ".join([row, *result.details])


def describe_gpu(device: str) -> str:
    """Returns a GPU's name, and the versions that its results depend on."""
    name = torch.cuda.get_device_name(torch.device(device))
    return (
        f"{name} (torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, driver {find_driver() or 'unknown'})"
    )


def write_report(path: Path, gpu: str, results: Sequence[Result]) -> None:
    """Writes the file that belongs to an issue: versions, machine, the table, and why each failed check failed."""
    lines = [
        "Some of accel_rl's GPU paths do not do here what they do on the CPU. Please open an issue in the repository",
        "of accel_rl, and attach this file.",
        "",
        f"accel_rl {__version__}, {gpu}",
        format_machine(describe_machine()),
        f"compute capability {torch.cuda.get_device_capability()}, GPUs: {torch.cuda.device_count()}",
        "",
        HEADER,
        *map(show_row, results),
    ]
    for result in results:
        if result.outcome == "failed":
            lines += ["", f"---- {result.name}: compares {CHECKS[result.name].compares}", result.failure]
    path.write_text("\n".join(lines) + "\n")
