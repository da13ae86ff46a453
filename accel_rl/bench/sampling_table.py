"""Formats the sampling benchmark's results: Table 1's rows, Figure 2's points, and the printed text."""

from typing import Any

from accel_rl.bench.timing import Turns, format_ratio, ratio
from accel_rl.hardware.description import format_machine

Row = dict[str, Any]


def table_row(num_cores: int, per_core: int, turns: dict[str, Turns]) -> Row:
    """Returns one row of Table 1: samples/s of all cores together."""
    return {
        "simulators": num_cores * per_core,
        "per_core": per_core,
        "sync": turns["sync"].median,
        "async": turns["async"].median,
        "sync_over_async": ratio(turns["sync"].rates, turns["async"].rates),
    }


def figure_point(kind: str, cores: int, per_core: int | None, rate: float) -> Row:
    """Returns one point of Figure 2.

    kind: "sampler"; or, for a line, one bare "process", or bare processes on all "hyperthreads" of one core."""
    return {"kind": kind, "cores": cores, "per_core": per_core, "steps_per_second_per_core": rate / cores}


def show(result: dict[str, Any]) -> None:
    """Prints the contents of the JSON."""
    options, ratios = result["options"], result["ratios"]
    print(format_machine(result["machine"]))
    print(
        f"{options['env']} ({options['env_preset']}, simulator {options['simulator']}), "
        f"{options['envs']} environments, {options['workers']} workers; medians, with 95 % intervals"
    )
    print(f"\n{'':16}{'steps/s':>9}   {'of the limit':24}shares of time")
    for name, contestant in result["contestants"].items():
        share = format_ratio(ratios[f"{name} / limit"]) if name != "limit" else ""
        times = ", ".join(f"{share_name} {value:.2f}" for share_name, value in contestant["shares"].items())
        print(f"{name:16}{contestant['steps_per_second']:9,.0f}   {share:24}{times}")
    for name, value in ratios.items():
        if not name.endswith("/ limit"):
            print(f"{name:28}{format_ratio(value)}")
    rounds = result["reset_round"]
    if rounds["with_reset"]:
        print(
            f"round with a reset / median round  {rounds['reset_over_median']:.3f} "
            f"({rounds['with_reset']} of {rounds['rounds']} rounds)"
        )
    for name, command in result["missing_peers"].items():
        print(f"not installed: {name}; {command}")
    if not result["table_1"]:
        return
    print(f"\nTable 1: samples/s with A3C-Net on {options['device']}, by number of simulators")
    print(f"{'simulators (per core)':24}{'SYNC':>9}{'ASYNC':>9}")
    for row in result["table_1"]:
        print(f"{row['simulators']} ({row['per_core']})".ljust(24) + f"{row['sync']:9,.0f}{row['async']:9,.0f}")
    print()
