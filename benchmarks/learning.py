"""Trains the same setting with several seeds, scores each final policy over whole games, and draws the curve.

python benchmarks/learning.py --env CartPole-v1 --steps 200000 --seeds 1 2 3 --out benchmarks/results/cartpole_a2c
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import accel_rl
from accel_rl.bench.machine import describe, machine, write_json
from accel_rl.plot import plot_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="a2c", help="algorithm (a2c)")
    parser.add_argument("--env", default="CartPole-v1", help="environment (CartPole-v1)")
    parser.add_argument("--steps", type=int, default=200_000, help="agent steps (200000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run for each (1 2 3)")
    parser.add_argument("--episodes", type=int, default=20, help="games of the final policy (20)")
    parser.add_argument("--out", type=Path, required=True, help="writes OUT.json, OUT.png and OUT_s<seed>.csv")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for seed in options.seeds:
            folder = Path(scratch) / f"s{seed}"
            accel_rl.train(
                options.algo, options.env, options.steps, seed=seed, out=folder, tensorboard=False, show=True
            )
            evaluation = asdict(accel_rl.load(folder).evaluate(options.episodes, seed=seed + 1000))
            summary = json.loads((folder / "summary.json").read_text())
            runs.append({**summary, "final_policy": evaluation})
            shutil.copy(folder / "progress.csv", f"{options.out}_s{seed}.csv")
            folders.append(folder)
            print(f"seed {seed}: final policy {evaluation['mean_reward']:.1f}, {summary['fps']:,.0f} steps/s")
        plot_runs(folders, options.out.with_suffix(".png"))
    print(describe(machine()))
    write_json(options.out.with_suffix(".json"), {"machine": machine(), "runs": runs})


if __name__ == "__main__":
    main()
