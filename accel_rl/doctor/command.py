"""The command `accel-rl doctor`: what this machine is, or a table of the checks of its GPU paths and a verdict."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accel_rl.errors import RunError, UsageError

if TYPE_CHECKING:
    from accel_rl.doctor.probe import Result

REPORT = Path("gpu_report.txt")  # in the current folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", action="store_true", help="compare every GPU path with the CPU, in two minutes")


def run(gpu: bool) -> None:
    """Prints what this machine is, or checks its GPU; raises RunError if there is none, or if a check fails."""
    if gpu:
        check_gpu()
    else:
        describe()


def describe() -> None:
    """Prints the machine, versions, and which devices can be used."""
    from accel_rl.envs.choice import describe_native
    from accel_rl.hardware.description import describe_machine, format_machine
    from accel_rl.hardware.devices import find_device, num_gpus
    from accel_rl.hardware.topology import read_topology

    print(f"machine       {format_machine(describe_machine())}")
    print(f"logical CPUs  {read_topology()}")
    print(f"Atari         {describe_native()}", flush=True)
    print(f"devices       {', '.join(['cpu', *(f'cuda:{gpu}' for gpu in range(num_gpus()))])}")
    print(f"--device auto {find_device('auto')}")
    if num_gpus():
        print("accel-rl doctor --gpu compares every GPU path with the CPU, in two minutes")
    else:
        print(f"no GPU        {_why_no_gpu()}")


def check_gpu(
    names: Sequence[str] | None = None,
    run_checks: "Callable[[Sequence[str], str], Iterable[Result]] | None" = None,
) -> None:
    """Runs checks, prints a table and the verdict; writes REPORT and raises RunError if any fails.

    names: of the checks (None: all). run_checks: runs them on a device (None: in a process of their own)."""
    device = _find_gpu()
    from accel_rl.doctor import checks  # noqa: F401  registers them
    from accel_rl.doctor.probe import CHECKS
    from accel_rl.doctor.process import run_in_processes
    from accel_rl.doctor.report import describe_gpu, write_report

    gpu = describe_gpu(device)
    print(f"checks of {gpu}")
    results = list(_print_rows((run_checks or run_in_processes)(names or list(CHECKS), device)))
    if failed := [result.name for result in results if result.outcome == "failed"]:
        write_report(REPORT, gpu, results)
        raise RunError(
            f"{len(failed)} of {len(results)} GPU checks failed ({'; '.join(failed)}): please open an issue with "
            f"{REPORT.resolve()}"
        )
    print(f"GPU paths verified on {gpu}")


def _print_rows(results: "Iterable[Result]") -> "Iterator[Result]":
    """Prints a row for each result as it comes."""
    from accel_rl.doctor.report import HEADER, show_row

    print(HEADER)
    for result in results:
        print(show_row(result), flush=True)
        yield result


def _find_gpu() -> str:
    """Returns the first GPU that can be used. Raises RunError, with what is missing, if there is none."""
    from accel_rl.hardware.devices import find_device

    try:
        device = find_device("auto")
        if device == "cpu":
            device = find_device("cuda")
    except UsageError as error:
        raise RunError(f"there is no GPU to check: {_why_no_gpu() or error}") from None
    return device


def _why_no_gpu() -> str:
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
