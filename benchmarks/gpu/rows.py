"""Defines rows, which hold the figures of a part of a GPU session, and the tables that show them."""

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_rl.bench.timing import format_ratio

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]
DETAILS = ("name", "took_s", "complete", "failures", "table")  # not shown by default


class Rows:
    """Makes rows and passes them on.

    put: takes a row, which replaces an earlier one of its name; complete=False in it makes a later call repeat it.
    have: the names of rows from an earlier call. out: the folder for files. is_dry: tiny settings on a fake GPU."""

    def __init__(self, put: Callable[[Row], object], have: Sequence[str], out: Path, is_dry: bool):
        self.put, self.have, self.out, self.is_dry = put, {*have}, out, is_dry

    def add(self, name: str, make: Callable[..., Row], *arguments: Any) -> None:
        """Makes a row unless it exists. A row that fails has its error; the part's log has the traceback."""
        if name in self.have:
            return
        print(f"---- {name}")
        start = time.perf_counter()
        try:
            row = make(*arguments)
        except Exception as error:
            traceback.print_exc()
            row = describe_error(error)
        self.put({"name": name, **row, "took_s": round(time.perf_counter() - start, 1)})


def describe_error(error: Exception) -> Row:
    """Returns a row's text for an error, in place of figures."""
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}


def run_part(parts: Mapping[str, Callable[[Rows], None]]) -> None:
    """Runs the part of the command line in this process: PART --rows FD --out DIR [--have NAMES] [--dry-run].

    It writes each row as a line of JSON to the descriptor FD."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=parts)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--have", type=json.loads, default=[])
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    os.set_inheritable(options.rows, False)  # the session waits until no process can write to it
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a part closes what it has started
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)  # shows where a part is at its time limit
    with os.fdopen(options.rows, "w", buffering=1) as file:

        def put(row: Row) -> None:
            file.write(json.dumps(row) + "\n")  # in one call, since some parts have threads

        parts[options.part](Rows(put, options.have, options.out, options.dry_run))


# ---- tables, on the console and in docs/gpu.md ----


def number(name: str, text: str = "{:,.0f}") -> Callable[[Row], str]:
    """Returns a function that formats one figure of a row; an empty text if the row lacks it."""
    return lambda row: text.format(row[name]) if row.get(name) is not None else ""


def percent(name: str, part: str | None = None) -> Callable[[Row], str]:
    """Returns a function that formats a share of a row, or of a part of it, in percent."""

    def show(row: Row) -> str:
        value = (row.get(part, {}) if part else row).get(name)
        return "" if value is None else f"{100 * value:.0f} %"

    return show


def ratio_to(peer: str) -> Callable[[Row], str]:
    """Returns a function that formats a row's rate over a peer's; an empty text if the peer did not take part."""
    return lambda row: format_ratio(row["over"][peer]) if peer in row.get("over", {}) else ""


def top_kernels(row: Row) -> str:
    """Returns the names and shares of the three kernels that take most of the GPU's time."""
    return "; ".join(f"{100 * share:.0f} % {kernel}" for kernel, share in row.get("top", [])[:3])


COMMON_RATES: tuple[Column, ...] = (
    ("steps/s", number("steps_per_s")),
    ("GPU busy", percent("gpu_use")),
    ("CPUs busy", percent("cpu_use")),
    ("env wait", percent("env_wait", "sampler_shares")),
    ("inference", percent("inference", "sampler_shares")),
    ("action wait", percent("action_wait", "sampler_shares")),
    ("GPU wait", percent("gpu_wait", "sampler_shares")),
)
TRAINING: tuple[Column, ...] = (
    *COMMON_RATES,
    ("learning (host)", percent("learn_host_share")),
    ("learning (GPU)", percent("learn_gpu_share")),
    ("workers", number("workers")),
    ("GPU GiB", number("gpu_gib", "{:.1f}")),
)
SEVERAL: tuple[Column, ...] = (("steps/s", number("steps_per_s")), ("exchange", percent("exchange_share")))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "training": TRAINING,
    "switches": TRAINING,
    "sampling": (*COMMON_RATES, ("workers", number("workers"))),
    "learners": SEVERAL,
    "scaling": SEVERAL,
    "pong": (
        ("minutes to 18", number("minutes_to_18", "{:.1f}")),
        ("score", number("score", "{:.1f}")),
        ("steps", number("steps")),
        ("minutes", number("minutes", "{:.1f}")),
    ),
    "micro": (
        ("act us", number("act_us")),
        ("in a graph", number("act_graph_us")),
        ("upload of frames", number("upload_frames_us")),
        ("of stacks", number("upload_stacks_us")),
        ("upload, act, wait", number("upload_act_wait_us")),
        ("update us", number("us")),  # committed results have these four; no row makes them now
        ("in a graph", number("graph_us")),
        ("compiled", number("compiled_us")),
        ("compiled, in a graph", number("compiled_graph_us")),
    ),
    "emulator": (
        ("frames/s", number("frames_per_s")),
        ("with pictures", number("frames_per_s_pictures")),
        ("equal consoles", number("equal_consoles")),
        ("after frames", number("frames")),
        ("equal pictures", number("equal_pictures")),
        ("registers", number("registers")),
        ("local bytes", number("local_bytes")),
        ("steps/s", number("steps_per_s")),
        ("top kernels", top_kernels),
    ),
    "profile": (
        ("ms", number("wall_ms", "{:.1f}")),
        ("kernels", number("kernels")),
        ("GPU busy", percent("gpu_busy_share")),
        ("longest gap ms", number("longest_gap_ms", "{:.2f}")),
        ("top kernels", top_kernels),
    ),
    "peers": (
        ("steps/s", number("steps_per_s")),
        ("from", number("low")),
        ("to", number("high")),
        ("over SB3, processes", ratio_to("SB3, processes")),
        ("over SB3, EnvPool", ratio_to("SB3, EnvPool")),
        ("steps/update", number("steps_per_update")),
        ("parameters", number("parameters")),
        ("set-up", lambda row: row.get("text", "")),
    ),
    "correctness": (
        ("verdict", lambda row: row.get("verdict", "")),
        ("failed", lambda row: ", ".join(row.get("failed", []))),
    ),
}


def format_rows(part: str, rows: Sequence[Row]) -> str:
    """Returns a part's table; a row with an error shows it in place of its figures."""
    if not rows:
        return "no rows"
    columns = COLUMNS.get(part) or (("", show_all),)
    lines = [f"| {part} | {' | '.join(title for title, _ in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [f"error: {row['error']}"] if "error" in row else [show(row) for _, show in columns]
        lines.append(f"| {row['name']} | {' | '.join(one_line(cell) for cell in cells)} |")
    return "\n".join(lines)


def show_all(row: Row) -> str:
    """Returns a row's text, or else all its figures with their names."""
    if "text" in row:
        return str(row["text"])
    return ", ".join(f"{name} {value}" for name, value in row.items() if name not in DETAILS)


def one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]


def longest(averages: Iterable[Any], by: str) -> list[list[Any]]:
    """Returns the names of the ten operations that took longest, and their shares of the time of all."""
    ordered = sorted(averages, key=lambda each: -getattr(each, by))
    total = sum(getattr(each, by) for each in ordered) or 1
    return [[each.key[:60], round(getattr(each, by) / total, 3)] for each in ordered[:10]]
