"""Trains with several seeds, evaluates each final policy over whole games, and draws the curve.

python benchmarks/learning.py --algo ppo --env CartPole-v1 --steps 100000 --out benchmarks/results/cartpole_ppo
python benchmarks/learning.py --algo a2c --preset a2c_continuous --env Pendulum-v1 --set sampler=serial --out ...
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import accel_rl
from accel_rl.analysis.plot import make_figure, save
from accel_rl.bench.output import write_json
from accel_rl.hardware.description import describe_machine, format_machine
from command_line import make_parser, run_program


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--algo", default="a2c", help="algorithm (a2c)")
    parser.add_argument("--preset", help="variant of its settings (none)")
    parser.add_argument("--env", default="CartPole-v1", help="environment (CartPole-v1)")
    parser.add_argument("--steps", type=int, default=200_000, help="agent steps (200000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds, one run each (1 2 3)")
    parser.add_argument("--episodes", type=int, default=20, help="games that each final policy plays (20)")
    parser.add_argument("--set", type=assignment, nargs="+", default=[], metavar="NAME=VALUE", help="other settings")
    parser.add_argument("--out", type=Path, required=True, help="writes OUT.json, OUT.png and OUT_s<seed>.csv")
    options = parser.parse_args()
    settings = {**dict(options.set), **({"preset": options.preset} if options.preset else {})}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for seed in options.seeds:
            folder = Path(scratch) / f"s{seed}"
            named = {"algo": options.algo, "env": options.env, "steps": options.steps, "seed": seed}
            accel_rl.train(**named | settings, out=folder, tensorboard=False, show=True)
            evaluation = asdict(accel_rl.load(folder, trust=True).evaluate(options.episodes, seed=seed + 1000))
            summary = json.loads((folder / "summary.json").read_text())
            runs.append({**summary, "final_policy": evaluation})
            shutil.copy(folder / "progress.csv", f"{options.out}_s{seed}.csv")
            folders.append(folder)
            print(f"seed {seed}: final policy {evaluation['mean_reward']:.1f}, {summary['fps']:,.0f} steps/s")
        save(make_figure(folders), options.out.with_suffix(".png"))
    print(format_machine(describe_machine()))
    write_json(options.out.with_suffix(".json"), {"machine": describe_machine(), "settings": settings, "runs": runs})


def assignment(text: str) -> tuple[str, str]:
    """Parses NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE, as in horizon=20")
    return name, value


if __name__ == "__main__":
    sys.exit(run_program(main))
