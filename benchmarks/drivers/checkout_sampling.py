"""Samples Pong with random actions in turns, with the accel_rl on PYTHONPATH; see turns.py.

benchmarks/compare_commits.py runs it with the accel_rl of several checkouts. It uses little of accel_rl, so that it
works with older and newer commits.
"""

import torch

import accel_rl
from accel_rl.bench.options import SamplingOptions
from accel_rl.bench.sampling import Benchmark
from turns import Turns


def main() -> None:
    benchmark = Benchmark(SamplingOptions(envs_per_core=8, device="cpu"))
    collect = benchmark.random_contestant().collect
    turns = Turns(lambda: 0)
    torch.set_num_threads(1)
    collect()
    turns.ready(package=accel_rl.__file__, envs=benchmark.num_envs)
    while True:
        turns.iterated(collect())


if __name__ == "__main__":
    main()
