"""Runs `accel-rl bench sampling`, which accel_rl/bench/sampling.py describes.

python benchmarks/sampling_throughput.py [--env pong] [--full] [--json FILE]
"""

import sys

from accel_rl.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "sampling", *sys.argv[1:]]))
