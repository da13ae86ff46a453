"""Measures how fast the network acts and learns on this CPU, by batch size, number of threads and precision.

    accel-rl bench network [--network a3c nature mlp] [--batches 8 80] [--threads 1 2] [--json FILE]

The contestants, which take turns (timing.py):

    act      ActorCritic.act, with parameters that do not change, on a group's stacks as the action server sees them
    learn    one A2C update: Update.minimize with the loss, the clipping and the RMSProp of a training run
    peak     a product of two large square matrices, by each of the libraries that PyTorch can multiply with

A figure's share of the peak is its rate times the network's FLOPs per sample, over the best rate of such a product in
any round, with as many threads and in the same precision. FLOPs are those of the layers' products, two for each
multiplication; learning computes them three times, except the gradient of the first layer's input, which nobody needs.
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from accel_rl.bench.network_contestants import (
    NETWORKS,
    Case,
    OnThreads,
    build_algo,
    build_works,
    count_flops,
    peak_works,
)
from accel_rl.bench.options import NetworkOptions
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Schedule, Turns, alternate, ratio
from accel_rl.hardware.allocator import keep_freed_memory
from accel_rl.hardware.instructions import has_bf16
from accel_rl.hardware.placement import MAX_LEARNING_THREADS
from accel_rl.hardware.topology import available_cpus

VERSION = 1  # of the JSON
BUDGET_S, LEAST_ROUNDS, MOST_ROUNDS = 35.0, 5, 20
NOTABLE_LOAD = 0.5  # programs that were running or waiting for a CPU, on average over a minute
FIGURES = ("samples/s", "us/batch", "of peak")
WIDTH = 31  # of one precision's figures

Row = dict[str, Any]
Peaks = dict[tuple[int, str], float]
"""FLOP/s by number of threads and precision."""


def default_threads(num_cpus: int) -> list[int]:
    """Returns the powers of two up to the number of logical CPUs, and to what training uses at most."""
    most = min(num_cpus, MAX_LEARNING_THREADS)
    return [2**i for i in range(most.bit_length())]


def list_cases(options: NetworkOptions, threads: Sequence[int], precisions: Sequence[str]) -> Iterator[Case]:
    """Yields every figure to be measured, by number of threads, since changing that takes time."""
    for num_threads in threads:
        for name in options.network:
            for work, batches in (("act", NETWORKS[name].act_batches), ("learn", NETWORKS[name].learn_batches)):
                for batch in options.batches or batches:
                    yield from (Case(name, work, batch, num_threads, precision) for precision in precisions)


def measure(cases: Sequence[Case], schedule: Schedule) -> tuple[dict[Case, Turns], Peaks]:
    """Returns the turns of every case, and the peaks: the best rate of all libraries and rounds."""
    works = build_works(cases)
    precisions = dict.fromkeys(case.precision for case in cases)
    multiplying = [(p, library, work) for p in precisions for library, work in peak_works(p).items()]
    players: list[OnThreads] = []
    products: dict[str, tuple[int, str]] = {}
    for threads in dict.fromkeys(case.threads for case in cases):
        for precision, library, work in multiplying:
            products[name := f"peak {library} {precision} {threads}"] = (threads, precision)
            players.append(OnThreads(name, work, threads))
        players += [OnThreads(str(case), works[case], threads) for case in cases if case.threads == threads]
    before = torch.get_num_threads()
    try:
        turns = alternate(players, schedule, "network")
    finally:
        torch.set_num_threads(before)
    peaks: Peaks = {}
    for name, key in products.items():
        peaks[key] = max(peaks.get(key, 0.0), *turns[name].rates)
    return {case: turns[str(case)] for case in cases}, peaks


def figure(case: Case, rates: list[float], flops: int, peak: float) -> Row:
    """Returns the row of one case. rates [samples/s]: of all rounds. flops: of one sample. peak [FLOP/s]."""
    rate = statistics.median(rates)
    return {
        **case._asdict(),
        "samples_per_second": rate,
        "us_per_batch": case.batch / rate * 1e6,
        "share_of_peak": rate * flops / peak,
        "rates": rates,
    }


def speedups(turns: dict[Case, Turns]) -> list[Row]:
    """Returns the ratios of rates in bfloat16 to those in float32, round by round."""
    pairs = [(case._replace(precision="bfloat16"), case) for case in turns if case.precision == "float32"]
    return [
        {
            **{name: value for name, value in below._asdict().items() if name != "precision"},
            "bfloat16_over_float32": ratio(turns[above].rates, turns[below].rates),
        }
        for above, below in pairs
        if above in turns
    ]


def run(options: NetworkOptions) -> dict[str, Any]:
    """Runs the whole benchmark, prints its tables and writes its file; returns what the JSON holds."""
    create_parents(options.json)
    load = os.getloadavg()[0]
    keep_freed_memory()
    threads = sorted(set(options.threads or default_threads(len(available_cpus()))))
    precisions = ("float32", "bfloat16") if has_bf16() else ("float32",)
    if options.rounds:
        schedule = Schedule(options.seconds, options.rounds)
    else:
        schedule = Schedule(options.seconds, MOST_ROUNDS, BUDGET_S, LEAST_ROUNDS)
    turns, peaks = measure(list(dict.fromkeys(list_cases(options, threads, precisions))), schedule)
    flops = {name: count_flops(build_algo(name, "float32").policy, NETWORKS[name].spec) for name in options.network}
    result = describe_run("network", VERSION, options)
    result["options"] |= {"threads": threads, "rounds": len(next(iter(turns.values())).rates)}
    result |= {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": "bfloat16" in precisions,
        "load_average": load,
        "peaks": [{"threads": n, "precision": p, "flops_per_second": peak} for (n, p), peak in peaks.items()],
        "networks": {
            name: {"title": NETWORKS[name].title, "act_flops": acting, "learn_flops": learning}
            for name, (acting, learning) in flops.items()
        },
        "figures": [
            figure(case, turn.rates, flops[case.network][case.work == "learn"], peaks[case.threads, case.precision])
            for case, turn in turns.items()
        ],
        "speedups": speedups(turns),
    }
    show(result)
    write_json(options.json, result)
    return result


def show(result: dict[str, Any]) -> None:
    """Prints what the JSON holds, in at most 100 columns."""
    machine, rounds = result["machine"], result["options"]["rounds"]
    precisions = ["float32", "bfloat16"] if result["bfloat16"] else ["float32"]
    print(f"{machine['cpu']}, cores: {machine['cores']}, logical CPUs: {machine['logical_cpus']}")
    print(f"torch {machine['packages']['torch']}, instructions: {result['instructions']}; medians of {rounds} rounds")
    if result["load_average"] > NOTABLE_LOAD:
        print(
            f"load average before: {result['load_average']:.1f}; other programs slow down several threads most of all"
        )
    if not result["bfloat16"]:
        print("bfloat16 is left out: this CPU has no instructions for it")
    print("\nact       chooses actions for a batch")
    print("learn     makes an A2C update on a batch")
    print("of peak   share of the rate at which large matrices multiply, same threads, same precision")
    print("\nPeak, GFLOP/s")
    print("threads" + "".join(f"{precision:>12}" for precision in precisions))
    peaks = {(peak["threads"], peak["precision"]): peak["flops_per_second"] for peak in result["peaks"]}
    for threads in result["options"]["threads"]:
        print(f"{threads:7}" + "".join(f"{peaks[threads, precision] / 1e9:12,.0f}" for precision in precisions))
    for name, network in result["networks"].items():
        _show_network(name, network, result, precisions)


def _show_network(name: str, network: dict[str, Any], result: dict[str, Any], precisions: list[str]) -> None:
    figures = {_key(row): row for row in result["figures"] if row["network"] == name}
    ratios = {_key(row): row["bfloat16_over_float32"]["median"] for row in result["speedups"] if row["network"] == name}
    works = dict.fromkeys(work for work, *_ in figures)
    flops = ", ".join(f"{network[f'{work}_flops'] / 1e6:.3g} MFLOP to {work}" for work in works)
    print(f"\n{name}: {network['title']}; a sample takes {flops}\n")
    print(" " * 20 + "".join(f"{f' {precision} ':-^{WIDTH - 3}}".rjust(WIDTH) for precision in precisions))
    titles = "".join(f"{title:>{width}}" for title, width in zip(FIGURES, (12, 10, 9), strict=True))
    print(f"{'':5}{'batch':>6}{'threads':>9}{titles * len(precisions)}" + (f"{'bf16/f32':>10}" if ratios else ""))
    for index, work in enumerate(works):
        print("\n" * bool(index), end="")
        for key in sorted({key[:3] for key in figures if key[0] == work}):
            line = "".join(_figures(figures[*key, precision]) for precision in precisions)
            print(f"{work:5}{key[1]:6}{key[2]:9}{line}" + (f"{ratios[*key, None]:10.2f}" if ratios else ""))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["work"], row["batch"], row["threads"], row.get("precision")


def _figures(row: dict[str, Any]) -> str:
    return f"{row['samples_per_second']:12,.0f}{row['us_per_batch']:10,.0f}{row['share_of_peak']:9.1%}"
