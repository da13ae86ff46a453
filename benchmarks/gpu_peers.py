"""Lets our training and Stable-Baselines3's take turns on Pong, with the networks on this machine's GPU.

python benchmarks/gpu_peers.py [--minutes 8] [--out DIR]
python benchmarks/gpu_peers.py --dry-run       on a fake GPU, which computes on the CPU; peers on the CPU

Needs no network. Stable-Baselines3 and EnvPool are looked for in .peers, which `training_throughput.py --install-peers`
makes (EnvPool: `.peers/stable-baselines3/bin/pip install envpool`). Without it, they are looked for where this Python
finds packages: `pip install --target FOLDER` puts them into a folder for PYTHONPATH; docs/gpu.md lists them. What is
not installed has a row that says so.

Contests, under the rules of training_throughput.py. Rates are agent steps per second:

    ppo      8 environments x 128 steps, 4 epochs of 4 minibatches; ours also with 112 environments x 16 steps
    a2c      16 environments x 5 steps; ours also with 112 environments
    dqn      32 environments x 4 steps, batches of 32, each sample 8 times

Ours competes in TF32 (PyTorch's own convolutions are, too, by default) and in bfloat16. Intervals are of 95 %.
The table shows the steps for each update and the parameters (without a target network); with the peers' sizes both must
be equal to theirs. A contestant that fails has a row that says so, and the others go on; rows are kept as they come, so
that nothing is lost when the minutes are over.

It is the part `peers` of gpu_session.py, and keeps its results as all parts do. LeanRL's and CleanRL's scripts are not
shipped: docs/gpu.md says how to run them.
"""

import sys
from collections.abc import Sequence

from command_line import make_parser
from gpu_session import run_session


def main(arguments: Sequence[str] | None = None) -> int:
    return run_session(make_parser(__doc__), arguments, parts=["peers"])


if __name__ == "__main__":
    sys.exit(main())
