"""Measures what action masks cost: PPO on Pong with a mask that allows every action, against Pong without masks.

python benchmarks/action_masks.py [--seconds S] [--rounds N] [--full] [--json FILE]

Both play the same gymnasium environment in workers; that with masks wears a wrapper (masked_pong.py). Trainings take
turns, and the figure is the ratio of their steps/s. By default this takes about 4 minutes on 2 logical CPUs. What masks
are good for, and not what they cost, is compared by runs/experiments/taxi.yaml.
"""

import sys
from functools import partial
from typing import Any

from accel_rl.bench.output import write_json
from accel_rl.bench.timing import compare, format_ratio, ratio
from accel_rl.hardware.description import describe_machine
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program
from training_contestants import Training

VERSION = 1  # of the JSON
BUDGET_S = 220.0
SETTINGS: dict[str, Any] = {"algo": "ppo", "env": "masked_pong:pong", "network": "a3c"}


def measure(options: TurnOptions) -> None:
    """Prints the rates and their ratio, and writes them to options.json."""
    wrappers = {"without": (), "with masks": ("masked_pong:AllowAll",)}
    builders = [partial(Training, name, SETTINGS | {"wrappers": each}) for name, each in wrappers.items()]
    turns = compare(builders, options.schedule(BUDGET_S), "PPO on Pong")
    cost = ratio(turns["with masks"].rates, turns["without"].rates)
    for name, each in turns.items():
        print(f"{name:12} {each.median:8,.0f} steps/s")
    print(f"with masks / without: {format_ratio(cost)}, {len(turns['without'].rates)} rounds")
    rates = {name: each.rates for name, each in turns.items()}
    write_json(options.json, {"version": VERSION, "machine": describe_machine(), "rates": rates, "ratio": cost})


def main() -> None:
    parser = make_parser(__doc__)
    add_turns(parser)
    add_json(parser)
    measure(TurnOptions(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(run_program(main))
