"""The command `accel-rl bench`. Every command imports this module, so its imports must be light."""

import argparse
from dataclasses import fields
from typing import Any

from accel_rl.bench.options import SamplingOptions, add_options


def add_bench(commands: Any) -> None:
    command = commands.add_parser("bench", help="measure speed", description="Measures speed on this machine.")
    benchmarks = command.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", help="what to measure")
    benchmark = benchmarks.add_parser(
        "sampling",
        help="sampling speed against the simulation limit",
        description="Compares samplers in alternating rounds of one run, within 4 minutes; prints Table 1 and draws "
        "Figure 2 of Stooke & Abbeel (2018).",
    )
    add_options(benchmark, SamplingOptions)
    benchmark.set_defaults(run=_bench_sampling)


def _bench_sampling(options: argparse.Namespace) -> None:
    from accel_rl.bench import sampling  # here, since it imports torch

    sampling.run(SamplingOptions(**{field.name: getattr(options, field.name) for field in fields(SamplingOptions)}))
