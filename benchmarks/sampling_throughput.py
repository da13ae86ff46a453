"""`accel-rl bench sampling`: how fast sampling is, and what else it could be. See accel_rl/bench/sampling.py.

python benchmarks/sampling_throughput.py [--env pong] [--full] [--json FILE]
"""

import sys

from accel_rl.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "sampling", *sys.argv[1:]]))
