"""Samples at full speed for minutes, and says whether memory, file descriptors or shared memory grow.

python benchmarks/soak.py [--minutes 10] [--env pong] [--envs 16] [--json FILE]

Compares the means of the second minute (the first one is for warm-up) and of the last one.
"""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import psutil

from accel_rl.bench.contestants import RandomPolicy
from accel_rl.bench.output import write_json
from accel_rl.envs import EnvConfig
from accel_rl.envs.batch_simulator import BatchConfig
from accel_rl.envs.probe import probe_spec
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.placement import default_workers
from accel_rl.hardware.topology import available_cpus
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig
from command_line import add_json, make_parser

# By how much the last period's mean may exceed the second one's and still count as constant.
ALLOWED = {"rss_kb": 500, "uss_kb": 500, "fds": 0, "shm_files": 0, "memfd_mappings": 0, "processes": 0}

Sample = dict[str, float]


def measure() -> Sample:
    """Returns what this process and all its descendants (launcher and workers) hold.

    RSS counts shared memory once for each process."""
    server = psutil.Process()
    processes = [server, *server.children(recursive=True)]
    memory = [process.memory_full_info() for process in processes]
    shm = Path("/dev/shm")
    maps = Path("/proc/self/maps")
    return {
        "rss_kb": sum(info.rss for info in memory) / 1024,
        "uss_kb": sum(info.uss for info in memory) / 1024,
        "server_uss_kb": memory[0].uss / 1024,
        "fds": sum(process.num_fds() for process in processes),
        "server_fds": server.num_fds(),
        "shm_files": len(os.listdir(shm)) if shm.is_dir() else 0,
        "memfd_mappings": maps.read_text().count("/memfd:accel_rl") if maps.exists() else 0,
        "processes": len(processes),
    }


def growth(samples: list[Sample], period_s: float) -> dict[str, dict[str, float]]:
    """Returns, for each quantity in ALLOWED, its means in the second period and in the last one."""
    end = samples[-1]["seconds"]
    second = [sample for sample in samples if period_s < sample["seconds"] <= 2 * period_s] or samples[:1]
    last = [sample for sample in samples if sample["seconds"] > end - period_s]
    return {
        name: {"second": statistics.mean(s[name] for s in second), "last": statistics.mean(s[name] for s in last)}
        for name in ALLOWED
    }


def grown(found: dict[str, dict[str, float]]) -> list[str]:
    """Returns the quantities that have grown by more than is allowed."""
    return [name for name, allowed in ALLOWED.items() if found[name]["last"] - found[name]["second"] > allowed]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="duration in minutes (10)")
    parser.add_argument("--seconds", type=float, help="duration in seconds instead, for a trial")
    parser.add_argument("--env", default="pong", help="game or environment (pong)")
    parser.add_argument("--envs", type=int, default=16, help="number of environments (16)")
    parser.add_argument("--workers", type=int, help="simulator processes (one per logical CPU)")
    parser.add_argument("--horizon", type=int, default=5, help="steps per environment and rollout (5)")
    parser.add_argument("--reset-mode", default="reserve", help="immediate, wait or reserve (reserve)")
    add_json(parser)
    options = parser.parse_args()
    duration_s = options.seconds or 60 * options.minutes
    interval_s = min(30.0, duration_s / 8)
    env = EnvConfig(options.env)
    spec = probe_spec(env)
    workers = options.workers or default_workers(options.envs, len(available_cpus()))
    policy = RandomPolicy(int(spec.action_space.n), options.envs, options.horizon)  # type: ignore[attr-defined]
    batch = BatchConfig(env, seed=0, reset_mode=options.reset_mode)
    sampler = AlternatingSampler(spec, batch, policy, SamplerConfig(options.envs, options.horizon, workers))
    samples: list[Sample] = []
    print(format_machine(describe_machine()))
    print(f"{options.env}, {options.envs} environments, {workers} workers, {options.reset_mode}")
    print("seconds   steps/s   RSS MB   USS MB   (server)   fds   (server)   /dev/shm   memfd maps   processes")
    try:
        sampler.collect()
        start = now = time.perf_counter()
        while now - start < duration_s:
            before, steps = now, 0
            while now - before < interval_s:
                steps += sampler.collect().reward.numel()
                now = time.perf_counter()
            sample = {"seconds": now - start, "steps_per_s": steps / (now - before), **measure()}
            samples.append(sample)
            print(_row(sample), flush=True)
            now = time.perf_counter()
    finally:
        sampler.close()
    found = growth(samples, period_s=min(60.0, duration_s / 4))
    growing = grown(found)
    for name, means in found.items():
        print(f"{name:15} {means['second']:12,.0f} -> {means['last']:12,.0f}  (allowed: +{ALLOWED[name]:,})")
    print(f"growing: {', '.join(growing)}" if growing else "constant")
    result: dict[str, Any] = {
        "options": {**vars(options), "json": None, "workers": workers},
        "machine": describe_machine(),
    }
    write_json(options.json, {**result, "growing": growing, "means": found, "samples": samples})


def _row(sample: Sample) -> str:
    mb = {name: sample[name] / 1024 for name in ("rss_kb", "uss_kb", "server_uss_kb")}
    return (
        f"{sample['seconds']:7.0f}  {sample['steps_per_s']:8,.0f}  {mb['rss_kb']:7.1f}  {mb['uss_kb']:7.1f}  "
        f"{mb['server_uss_kb']:9.1f}  {sample['fds']:4.0f}  {sample['server_fds']:9.0f}  {sample['shm_files']:9.0f}  "
        f"{sample['memfd_mappings']:11.0f}  {sample['processes']:10.0f}"
    )


if __name__ == "__main__":
    main()
