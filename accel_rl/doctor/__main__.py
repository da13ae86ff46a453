"""Runs `python -m accel_rl.doctor`, which is `accel-rl doctor`."""

import argparse
import sys

from accel_rl.doctor.command import add_arguments, run
from accel_rl.errors import RunError, UsageError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m accel_rl.doctor")
    add_arguments(parser)
    try:
        options = parser.parse_args()
        run(options.gpu, options.json)
    except (UsageError, RunError, OSError) as error:
        print(f"accel-rl: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


sys.exit(main())
