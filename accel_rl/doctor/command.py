"""The command `accel-rl doctor`: a report on this machine, or a comparison of its GPU with its CPU."""

import argparse
from typing import Any

from accel_rl.errors import UsageError


def add_doctor(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="report on this machine and what to fix, or check that its GPU does what the CPU does",
        description="Reports in about 20 seconds what this machine is, how fast it trains, what a run would use, and "
        "what to fix with which command; exits with status 1 if training fails. With --gpu: compares every GPU path "
        "with the CPU, within two minutes, and ends with a verdict.",
    )
    command.add_argument("--gpu", action="store_true", help="compare what the GPU does with the CPU, in two minutes")
    command.add_argument("--json", action="store_true", help="print the report as one JSON object")
    command.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    if options.gpu and options.json:
        raise UsageError("--json and --gpu exclude each other; omit one of them")
    if options.gpu:
        from accel_rl.doctor.gpu_check import check_gpu

        check_gpu()
    else:
        from accel_rl.doctor.survey import survey

        survey(options.json)
