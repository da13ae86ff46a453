"""How close training comes to the two-resource bound: with S the rate of simulating alone and N that of the network
alone (choosing actions and learning, at the same batch sizes), each on all cores, no schedule exceeds 1/(1/S + 1/N).

    python benchmarks/training_throughput.py [--env pong] [--envs 16] [--algo a2c] [--json FILE]
"""

import argparse
import statistics
from pathlib import Path

import torch

from accel_rl.bench.limit import SimulationLimit
from accel_rl.bench.machine import describe, machine, write_json
from accel_rl.bench.timing import Contestant, Repeated, Schedule, alternate, ratio, show_ratio, two_resource_bound
from accel_rl.build import build_algo, build_sampler, build_update
from accel_rl.config import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--env", default="pong", help="game or environment")
    parser.add_argument("--env-preset", default="stooke", help="Atari's frames and episodes")
    parser.add_argument("--envs", type=int, default=16, help="environments")
    parser.add_argument("--rounds", type=int, default=20, help="rounds in which the contestants take turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each contestant in a round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--algo", default="a2c", help="algorithm")
    parser.add_argument("--workers", type=int, help="simulator processes (one per processor)")
    parser.add_argument("--sampling-threads", type=int, help="threads of the network while sampling")
    parser.add_argument("--learning-threads", type=int, help="threads of the network while learning")
    options = parser.parse_args()
    names = ("env", "env_preset", "envs", "algo", "workers", "sampling_threads", "learning_threads")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    config = resolve({**given, "steps": 10**9})
    algo = build_algo(config)
    update = build_update(config, algo)
    sampler = build_sampler(config, algo.policy)
    sampling_threads, learning_threads = config.plan.sampling_threads, config.plan.learning_threads
    limit = SimulationLimit(config.env, options.envs, name="simulation")
    half, horizon = config.run.envs // 2, config.run.horizon
    rollout = sampler.collect()
    observation, noise = rollout.observations(0, 1)[0, :half], algo.policy.draw_noise(1, half, torch.Generator())[0]

    def train() -> int:
        torch.set_num_threads(sampling_threads)
        rollout = sampler.collect()
        torch.set_num_threads(learning_threads)
        algo.learn(rollout, update)
        return rollout.reward.numel()

    def network() -> int:
        """The same passes of the network as in training, with nobody else at work."""
        torch.set_num_threads(learning_threads)
        for _ in range(2 * horizon):
            algo.policy.act(observation, noise)
        algo.learn(rollout, update)
        return rollout.reward.numel()

    contestants: list[Contestant] = [limit, Repeated("network", network), Repeated("training", train)]
    turns = alternate(contestants, Schedule(options.seconds, options.rounds), "training")
    limit.close()
    sampler.close()
    rates = {name: turn.rates for name, turn in turns.items()}
    bound = two_resource_bound(rates["simulation"], rates["network"])
    share = ratio(rates["training"], bound)
    print(describe(machine()))
    print(
        f"{options.algo} on {options.env} ({options.env_preset}), {options.envs} environments, {config.workers} workers"
    )
    for name, values in {**rates, "bound": bound}.items():
        print(f"{name:12} {statistics.median(values):8,.0f} steps/s")
    print(f"training / bound  {show_ratio(share)}")
    result = {"machine": machine(), "workers": config.workers, "rates": rates, "share_of_bound": share}
    write_json(options.json, {"options": {**vars(options), "json": None}, **result})


if __name__ == "__main__":
    main()
