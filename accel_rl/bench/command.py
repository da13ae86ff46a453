"""The command `accel-rl bench`. The command line imports this module for every command: it stays light."""

import argparse
import importlib
from dataclasses import fields
from typing import Any

from accel_rl.bench.options import EmulatorOptions, NetworkOptions, SamplingOptions, add_options

BENCHMARKS: dict[str, Any] = {"sampling": SamplingOptions, "network": NetworkOptions, "emulator": EmulatorOptions}


def add_bench(commands: Any) -> None:
    command = commands.add_parser("bench", help="measure speed", description="Measures speed on this machine.")
    benchmarks = command.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", help="what to measure")
    benchmark = benchmarks.add_parser(
        "sampling",
        help="sampling speed against the simulation limit and other vectorized environments",
        description="Compares samplers in alternating rounds of one run, within 4 minutes; prints the paper's Table 1 "
        "and draws its Figure 2.",
    )
    add_options(benchmark, SamplingOptions)
    benchmark.set_defaults(run=_bench)
    benchmark = benchmarks.add_parser(
        "network",
        help="acting and learning of the network on the CPU against its matrix products",
        description="Measures how fast the network acts and learns on this CPU by batch size, threads and precision, "
        "within a minute; prints a table for each network.",
    )
    add_options(benchmark, NetworkOptions)
    benchmark.set_defaults(run=_bench)
    benchmark = benchmarks.add_parser(
        "emulator",
        help="the project's own Atari emulator against ale-py and other vectorized environments",
        description="Measures frames and steps per second by game beside ale-py and EnvPool in alternating rounds of "
        "one run, within 4 minutes, and draws them.",
    )
    add_options(benchmark, EmulatorOptions)
    benchmark.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> None:
    kind = BENCHMARKS[options.benchmark]
    settings = kind(**{field.name: getattr(options, field.name) for field in fields(kind)})
    importlib.import_module(f"accel_rl.bench.{options.benchmark}").run(settings)
