"""The command `accel-rl doctor`: a report on this machine, or a table of the checks of its GPU paths and a verdict."""

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
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(gpu: bool, json: bool) -> None:
    """Prints what this machine is and how it trains, or checks its GPU.

    Raises RunError if the self-test or a check fails, or if there is no GPU to check; UsageError for json with gpu."""
    if gpu and json:
        raise UsageError("--json is the report without --gpu; omit one of them")
    if gpu:
        check_gpu()
    else:
        from accel_rl.doctor.survey import survey

        survey(json)


def check_gpu(
    names: Sequence[str] | None = None,
    run_checks: "Callable[[Sequence[str], str], Iterable[Result]] | None" = None,
) -> None:
    """Runs checks, prints a table and the verdict; writes REPORT and raises RunError if any fails.

    names: of the checks (None: all). run_checks: runs them on a device (None: in a process of their own)."""
    device = _find_gpu()
    from accel_rl.doctor import checks  # noqa: F401  registers them
    from accel_rl.doctor.gpu_report import describe_gpu, write_report
    from accel_rl.doctor.probe import CHECKS
    from accel_rl.doctor.process import run_in_processes

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
    from accel_rl.doctor.gpu_report import HEADER, show_row

    print(HEADER)
    for result in results:
        print(show_row(result), flush=True)
        yield result


def _find_gpu() -> str:
    """Returns the first GPU that can be used. Raises RunError, with what is missing, if there is none."""
    from accel_rl.doctor.gpus import why_no_gpu
    from accel_rl.hardware.devices import find_device

    try:
        device = find_device("auto")
        if device == "cpu":
            device = find_device("cuda")
    except UsageError as error:
        raise RunError(f"there is no GPU to check: {why_no_gpu() or error}") from None
    return device
