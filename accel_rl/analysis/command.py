"""The commands for trained policies and logs of runs: `accel-rl eval`, `record`, `export` and `plot`.

Every command imports this module, so its imports must be light."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError


def add_eval(commands: Any) -> None:
    command = commands.add_parser(
        "eval",
        help="score a trained policy",
        description="Plays whole games and prints their mean score and length as JSON.",
    )
    _add_run_dir(command)
    command.add_argument("--episodes", type=int, default=10, metavar="N", help="games to play (default: 10)")
    command.add_argument("--seed", type=int, metavar="S", help="seed of the games (default: the run's)")
    command.add_argument(
        "--greedy",
        action=argparse.BooleanOptionalAction,
        help="play the likeliest actions, or with --no-greedy sampled ones (default: the run's --eval-greedy)",
    )
    command.set_defaults(run=_eval)


def add_record(commands: Any) -> None:
    command = commands.add_parser(
        "record", help="make a video of a trained policy", description="Plays one game and records it."
    )
    _add_run_dir(command)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.mp4", help="the video to write")
    command.set_defaults(run=_record)


def add_export(commands: Any) -> None:
    command = commands.add_parser(
        "export",
        help="write a trained policy to a file that acts without accel-rl",
        description="Writes a policy as ONNX or TorchScript: observations in, greedy actions out, on any batch. Checks "
        "that the file acts as the policy does. Or writes a folder for sharing: the policy, a model card with its "
        "scores, ONNX, and a video.",
    )
    _add_run_dir(command)
    command.add_argument("--format", required=True, metavar="FORMAT", help="onnx, torchscript, or card")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="the file or folder (default: in RUN_DIR, policy.onnx or the like)"
    )
    command.set_defaults(run=_export)


def add_plot(commands: Any) -> None:
    command = commands.add_parser(
        "plot",
        help="draw learning curves",
        description="Draws the learning curves of runs; runs that differ only in their seed become one curve.",
    )
    command.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="a run's folder")
    command.add_argument(
        "--scores",
        action="store_true",
        help="draw and print human-normalized scores of Atari runs instead, by setting, over all of their games; a "
        "RUN_DIR may also be a file of scores",
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE.png", help="the picture to write")
    command.set_defaults(run=_plot)


def _add_run_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's folder")
    command.add_argument("--best", action="store_true", help="the best evaluated policy instead of the last one")
    command.add_argument(
        "--trust", action="store_true", help="run code from outside this package that the policy's files name"
    )


def _eval(options: argparse.Namespace) -> None:
    from accel_rl.analysis.trained_policy import load

    if options.episodes < 1:
        raise UsageError(f"episodes={options.episodes} must be at least 1")
    policy = load(options.run_dir, options.best, options.trust)
    evaluation = policy.evaluate(options.episodes, options.seed, options.greedy)
    if evaluation.episodes < options.episodes:
        cut = options.episodes - evaluation.episodes
        print(f"accel-rl: {cut} of {options.episodes} games were cut at their step limit", file=sys.stderr)
    print(json.dumps(asdict(evaluation)))


def _record(options: argparse.Namespace) -> None:
    from accel_rl.analysis.trained_policy import load

    trained_policy = load(options.run_dir, options.best, options.trust)
    game = trained_policy.record_video(options.out)
    print(f"{options.out}: score {game.score:g} in {game.length:,} steps")


def _export(options: argparse.Namespace) -> None:
    from accel_rl.analysis.export import SUFFIXES, check_format, export
    from accel_rl.analysis.trained_policy import load

    if options.format == "card":
        from accel_rl.analysis.card import EPISODES, write_card

        if options.out is None:
            raise UsageError("a card is a separate folder; name it with --out FOLDER")
        mean = write_card(options.run_dir, options.out, options.best, options.trust)
        interval = f"{mean.low:.1f} to {mean.high:.1f}"
        print(f"{options.out}: score {mean.value:.1f} ({interval}) in {EPISODES} games")
        return
    check_format(options.format)
    name = ("best" if options.best else "policy") + SUFFIXES[options.format]
    trained_policy = load(options.run_dir, options.best, options.trust)
    print(export(trained_policy, options.out or options.run_dir / name, options.format))


def _plot(options: argparse.Namespace) -> None:
    from accel_rl.analysis import plot

    if options.scores:
        from accel_rl.analysis.scores import compare, format_table, make_figure

        comparisons = compare(options.run_dirs)
        plot.save(make_figure(comparisons), options.out)
        print(format_table(comparisons))
    else:
        plot.save(plot.make_figure(options.run_dirs), options.out)
    print(options.out)
