"""Runs `accel-rl launch`."""

import sys

from accel_rl.cli import main

if __name__ == "__main__":
    sys.exit(main(["launch", *sys.argv[1:]]))
