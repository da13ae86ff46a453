"""Measures our training and Stable-Baselines3's in turns on Pong, with the networks on this machine's GPU.

python benchmarks/gpu_peers.py [--minutes 8] [--out DIR]
python benchmarks/gpu_peers.py --dry-run       on a fake GPU, which computes on the CPU; peers on the CPU

It works offline. It looks for Stable-Baselines3 and EnvPool in .peers, which `training_throughput.py --install-peers`
makes (EnvPool: `.peers/stable-baselines3/bin/pip install envpool`). Without .peers, it looks where this Python finds
packages: `pip install --target FOLDER` installs them to a folder for PYTHONPATH; docs/gpu.md lists them. A row says
what is not installed.

Contests, under the rules of training_throughput.py. Rates are agent steps per second:

    ppo      8 environments x 128 steps, 4 epochs of 4 minibatches; ours also with 112 environments x 16 steps
    a2c      16 environments x 5 steps; ours also with 112 environments
    dqn      32 environments x 4 steps, batches of 32, each sample 8 times

Ours computes in TF32, as PyTorch's own convolutions do by default, and in bfloat16. Intervals are 95 % intervals. The
table shows the steps per update and the parameters (without a target network); with the peers' sizes, both must equal
theirs. A contestant that fails has a row that says so, and the others continue. Rows are kept as they come, so nothing
is lost when the minutes are over.

This is the part `peers` of gpu_session.py, and it keeps its results like all other parts. LeanRL's and CleanRL's
scripts are not included: docs/gpu.md says how to run them.
"""

import sys
from collections.abc import Sequence

from command_line import make_parser
from gpu_session import run_session


def main(arguments: Sequence[str] | None = None) -> int:
    return run_session(make_parser(__doc__), arguments, parts=["peers"])


if __name__ == "__main__":
    sys.exit(main())
