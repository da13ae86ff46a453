"""How close training comes to the two-resource bound: with S the rate of simulating alone and N that of the network
alone (choosing actions and learning, at the same batch sizes), each on all cores, no schedule exceeds 1/(1/S + 1/N).

    python benchmarks/training_throughput.py [--env pong] [--envs 16] [--algo a2c] [--json FILE]
"""

import statistics
import time

import torch
from common import SimulationLimit, alternate, arguments, describe, machine, ratio, show_ratio, write_json

from accel_rl.build import build_algo, build_sampler, build_update
from accel_rl.config import resolve


def main() -> None:
    parser = arguments(__doc__)
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
    limit = SimulationLimit(config.env, options.envs)
    half, horizon = config.run.envs // 2, config.run.horizon
    rollout = sampler.collect()
    observation, noise = rollout.observations(0, 1)[0, :half], algo.policy.draw_noise(1, half, torch.Generator())[0]

    def train(seconds: float) -> float:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            torch.set_num_threads(sampling_threads)
            rollout = sampler.collect()
            torch.set_num_threads(learning_threads)
            algo.learn(rollout, update)
            steps += rollout.reward.numel()
        return steps / (time.perf_counter() - start)

    def network(seconds: float) -> float:
        """The same passes of the network as in training, with nobody else at work."""
        start, steps = time.perf_counter(), 0
        torch.set_num_threads(learning_threads)
        while time.perf_counter() - start < seconds:
            for _ in range(2 * horizon):
                algo.policy.act(observation, noise)
            algo.learn(rollout, update)
            steps += rollout.reward.numel()
        return steps / (time.perf_counter() - start)

    train(1.0)
    rates = alternate({"simulation": limit.run, "network": network, "training": train}, options.rounds, options.seconds)
    limit.close()
    sampler.close()
    bound = [1 / (1 / s + 1 / n) for s, n in zip(rates["simulation"], rates["network"], strict=True)]
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
