"""Measures what environments that come in batches are worth: EnvPool's against gymnasium's, stepped one by one.

python benchmarks/vector_envs.py [--envs N] [--full] [--json FILE]

For CartPole and Ant, in turns: sampling with random actions, and training PPO with its defaults. Both have the workers
and threads that a run picks by default. The two-resource bound of EnvPool's training is that of its own sampling and of
the network's passes alone, each with the whole machine. It needs `pip install "accel-rl[envpool,mujoco]"`.
"""

import sys
from typing import Any

import gymnasium
import torch

from accel_rl.bench.contestants import RandomPolicy
from accel_rl.bench.output import create_parents, write_json
from accel_rl.bench.timing import Repeated, compare, format_ratio, ratio, two_resource_bound
from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.training.build import build_sampler, check
from accel_rl.training.resolve import resolve
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program
from training_contestants import Settings, Training

VERSION = 1  # of the JSON
PAIRS = {"CartPole": ("envpool:CartPole-v1", "CartPole-v1"), "Ant": ("envpool:Ant-v5", "Ant-v5")}
BUDGET_S = 115.0  # of a pair


class RandomActions(RandomPolicy):
    """RandomPolicy for any action space of the pairs."""

    def __init__(self, spec: EnvSpec, num_envs: int, num_steps: int):
        space: Any = spec.action_space
        super().__init__(int(getattr(space, "n", 1)), num_envs, num_steps)
        if isinstance(space, gymnasium.spaces.Box):
            self._drawn = torch.rand(*self._drawn.shape, *space.shape) * 2 - 1


class Sampling(Repeated):
    """Collects rollouts with random actions."""

    def __init__(self, name: str, settings: Settings):
        config = check(resolve({**settings, "steps": 10**12}))
        policy = RandomActions(config.spec, config.local_envs, config.run.horizon)
        sampler = build_sampler(config, policy)
        super().__init__(name, lambda: sampler.collect().reward.numel())
        self.close = sampler.close  # type: ignore[method-assign]


def measure(pair: str, options: TurnOptions, envs: int) -> dict[str, Any]:
    """Returns medians [steps/s] and ratios of one pair."""
    settings = [{"algo": "ppo", "env": env, "envs": envs, "device": "cpu"} for env in PAIRS[pair]]
    makers = {"envpool": settings[0], "gymnasium": settings[1]}
    trainings: list[Training] = []

    def train(name: str) -> Training:
        trainings.append(Training(f"train {name}", makers[name]))
        return trainings[-1]

    turns = compare(
        [
            *(lambda name=name: Sampling(f"sample {name}", makers[name]) for name in makers),
            *(lambda name=name: train(name) for name in makers),
            lambda: trainings[0].network(),
        ],
        options.schedule(BUDGET_S),
        pair,
    )
    rates = {name: turn.rates for name, turn in turns.items()}
    bound = two_resource_bound(rates["sample envpool"], rates["network"])
    return {
        "rates": rates,
        "medians": {name: turn.median for name, turn in turns.items()},
        "ratios": {
            "sampling, EnvPool / gymnasium": ratio(rates["sample envpool"], rates["sample gymnasium"]),
            "training, EnvPool / gymnasium": ratio(rates["train envpool"], rates["train gymnasium"]),
            "training, EnvPool / its two-resource bound": ratio(rates["train envpool"], bound),
        },
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--envs", type=int, default=64, help="environments (64)")
    add_turns(parser)
    add_json(parser)
    given = vars(parser.parse_args())
    envs = given.pop("envs")
    options = TurnOptions(**given)
    create_parents(options.json)
    machine = describe_machine()
    print(format_machine(machine))
    results = {pair: measure(pair, options, envs) for pair in PAIRS}
    for pair, result in results.items():
        print(f"\n{pair}, {envs} environments")
        for name, median in result["medians"].items():
            print(f"  {name:18} {median:10,.0f} steps/s")
        for name, value in result["ratios"].items():
            print(f"  {name:44} {format_ratio(value)}")
    write_json(options.json, {"version": VERSION, "machine": machine, "envs": envs, "pairs": results})


if __name__ == "__main__":
    sys.exit(run_program(main))
