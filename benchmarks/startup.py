"""Measures the seconds until many workers have built their environments, as the median of several starts.

python benchmarks/startup.py [--workers 64] [--envs-per-worker 2] [--rounds 5] [--json FILE]
"""

import statistics
import sys
import time

from accel_rl.bench.contestants import RandomPolicy
from accel_rl.bench.output import write_json
from accel_rl.envs import EnvConfig
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.probe import probe_spec
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig
from command_line import add_json, make_parser, run_program


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--env", default="pong", help="game or environment (pong)")
    parser.add_argument("--workers", type=int, default=64, help="simulator processes (64)")
    parser.add_argument("--envs-per-worker", type=int, default=2, help="environments per worker (2)")
    parser.add_argument("--rounds", type=int, default=5, help="number of starts (5)")
    add_json(parser)
    options = parser.parse_args()
    env, num_envs = EnvConfig(options.env), options.workers * options.envs_per_worker
    spec = probe_spec(env)
    policy = RandomPolicy(int(spec.action_space.n))  # type: ignore[attr-defined]
    config = SamplerConfig(num_envs, 5, options.workers, env_timeout_s=120.0, env_build_timeout_s=600.0)
    seconds: dict[str, list[float]] = {"up": [], "first_rollout": [], "close": []}
    for _ in range(options.rounds):
        times = [time.perf_counter()]
        sampler = AlternatingSampler(spec, BatchConfig(env, seed=0, reset_mode="reserve"), policy, config)
        times.append(time.perf_counter())
        try:
            sampler.collect()
            times.append(time.perf_counter())
        finally:
            sampler.close()
        times.append(time.perf_counter())
        for values, begin, end in zip(seconds.values(), times[:-1], times[1:], strict=True):
            values.append(end - begin)
    print(format_machine(describe_machine()))
    print(f"{options.env}, {options.workers} workers with {options.envs_per_worker} environments each")
    for name, values in seconds.items():
        print(f"{name:14} {statistics.median(values):6.2f} s  ({min(values):.2f} to {max(values):.2f})")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {"machine": describe_machine(), "seconds": seconds, "medians": medians}
    write_json(options.json, {"options": {**vars(options), "json": None}, **result})


if __name__ == "__main__":
    sys.exit(run_program(main))
