"""How close sampling comes to the simulation limit: steps/s of the sampler with random actions over those of bare
processes that only simulate, in alternating rounds of one run.

    python benchmarks/sampling_throughput.py [--env pong] [--envs 16] [--workers N] [--json FILE]
"""

import statistics
import time

import psutil
import torch
from common import SimulationLimit, alternate, arguments, describe, machine, ratio, show_ratio, write_json
from torch import Tensor

from accel_rl.affinity import available_cpus, default_workers
from accel_rl.envs import EnvConfig
from accel_rl.envs.batch import BatchConfig
from accel_rl.envs.probe import probe_spec
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.common import SamplerConfig

HORIZON = 5


class RandomPolicy:
    """Uniformly random actions, with nothing to compute."""

    def __init__(self, num_actions: int):
        self.num_actions = num_actions

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_actions, (num_steps, num_envs), generator=generator)

    def act(self, observation: Tensor, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        assert noise is not None
        return noise, {}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, help="simulator processes (one per processor)")
    options = parser.parse_args()
    env = EnvConfig(options.env, options.env_preset)
    spec = probe_spec(env)
    workers = options.workers or default_workers(options.envs, len(available_cpus()))
    torch.set_num_threads(1)
    policy = RandomPolicy(int(getattr(spec.action_space, "n", 0)))
    sampler = AlternatingSampler(spec, BatchConfig(env, seed=0), policy, SamplerConfig(options.envs, HORIZON, workers))
    limit = SimulationLimit(env, options.envs)

    def sample(seconds: float) -> float:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            steps += sampler.collect().reward.numel()
        return steps / (time.perf_counter() - start)

    sample(1.0)
    rates = alternate({"limit": limit.run, "sampler": sample}, options.rounds, options.seconds)
    uss = [psutil.Process(process.pid).memory_full_info().uss / 1e6 for process in sampler.pool.processes]
    limit.close()
    sampler.close()
    efficiency = ratio(rates["sampler"], rates["limit"])
    print(describe(machine()))
    print(f"{options.env} ({options.env_preset}), {options.envs} environments, {workers} workers")
    print(f"simulation limit  {statistics.median(rates['limit']):8,.0f} steps/s")
    print(f"sampler           {statistics.median(rates['sampler']):8,.0f} steps/s")
    print(f"efficiency        {show_ratio(efficiency)}")
    print(f"own memory of a worker (USS), the largest: {max(uss):.0f} MB with {options.envs // workers} environments")
    result = {"machine": machine(), "workers": workers, "rates": rates, "efficiency": efficiency, "worker_uss_mb": uss}
    write_json(options.json, {"options": {**vars(options), "json": None}, **result})


if __name__ == "__main__":
    main()
