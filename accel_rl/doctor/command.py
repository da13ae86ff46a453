"""The command `accel-rl doctor`: a report on this machine, or its GPU beside its CPU, and a verdict."""

import argparse

from accel_rl.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", action="store_true", help="compare what the GPU does with the CPU, in two minutes")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(gpu: bool, json: bool) -> None:
    """Prints what this machine is and how it trains, or checks its GPU.

    Raises RunError if the self-test or a check fails, or if there is no GPU to check; UsageError for json with gpu."""
    if gpu and json:
        raise UsageError("--json is the report without --gpu; omit one of them")
    if gpu:
        from accel_rl.doctor.gpu_check import check_gpu

        check_gpu()
    else:
        from accel_rl.doctor.survey import survey

        survey(json)
