"""Measures sampling of CartPole on a device, in torch, against gymnasium's CartPole-v1 in workers.

python benchmarks/device_envs.py [--envs 1024] [--device auto] [--full] [--json FILE]

Both collect rollouts of 32 steps of as many environments, with the same policy, an ActorCritic with two layers of 64
units, and learn nothing: the device sampler with docs/examples/cartpole_torch.py, the alternating one with as many
workers and threads as a run picks by default. They take turns; the ratio is that of their steps/s.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accel_rl.bench.output import describe_run, write_json
from accel_rl.bench.timing import Repeated, compare, format_ratio, ratio
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.training.build import build_sampler
from accel_rl.training.resolve import resolve
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program

VERSION = 1  # of the JSON
BUDGET_S = 100.0
HORIZON = 32
ENVS = {"device": "docs.examples.cartpole_torch:make", "workers": "CartPole-v1"}


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(TurnOptions):
    """Options of the benchmark. envs: of each contestant. device: of the policy, and of the environments in torch."""

    envs: int = 1024
    device: str = "auto"


class Sampling(Repeated):
    """Collects rollouts of an environment with the sampler that is its own by default."""

    def __init__(self, name: str, options: DeviceOptions):
        settings = {"env": ENVS[name], "envs": options.envs, "device": options.device, "horizon": HORIZON}
        config = resolve({"algo": "a2c", "seed": 1, "decorrelation_steps": 0, **settings})
        torch.manual_seed(1)
        policy = ActorCritic(config.spec).to(config.device)
        self._sampler, self._threads = build_sampler(config, policy), config.plan.sampling_threads
        super().__init__(name, lambda: self._sampler.collect().reward.numel())

    def run(self, seconds: float) -> float:
        torch.set_num_threads(self._threads)
        return super().run(seconds)

    def close(self) -> None:
        self._sampler.close()


def measure(options: DeviceOptions) -> dict[str, Any]:
    """Returns the figures of both contestants, and their ratio."""
    builders = [partial(Sampling, name, options) for name in ENVS]
    turns = compare(builders, options.schedule(BUDGET_S), "sampling")
    rates = {name: turns[name].rates for name in ENVS}
    result: dict[str, Any] = {"steps_per_s": rates, "ratio": ratio(rates["device"], rates["workers"])}
    print(f"machine   {format_machine(describe_machine())}")
    for name in ENVS:
        print(f"{name:<9} {turns[name].median:>12,.0f} steps/s, {options.envs} x {ENVS[name]}")
    print(f"ratio     {format_ratio(result['ratio'])}, {len(rates['device'])} rounds")
    write_json(options.json, {**describe_run("device_envs", VERSION, options), **result})
    return result


def main() -> int:
    parser = make_parser(__doc__)
    add_turns(parser, budget="100 seconds")
    parser.add_argument("--envs", type=int, default=1024, metavar="N", help="environments of each contestant (1024)")
    parser.add_argument("--device", default="auto", help="of the policy and of the environments in torch (auto)")
    add_json(parser)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # docs.examples, for this process and its workers
    return run_program(lambda: measure(DeviceOptions(**vars(parser.parse_args()))))


if __name__ == "__main__":
    sys.exit(main())
