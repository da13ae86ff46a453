"""Runs `accel-rl train`."""

import sys

from accel_rl.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
