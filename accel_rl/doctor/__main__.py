"""Runs `python -m accel_rl.doctor`, which is `accel-rl doctor`."""

import argparse
import sys

from accel_rl.doctor.command import add_arguments, run
from accel_rl.errors import RunError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m accel_rl.doctor")
    add_arguments(parser)
    try:
        run(parser.parse_args().gpu)
    except (RunError, OSError) as error:
        print(f"accel-rl: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
