"""Trains tiny runs with the accel_rl on PYTHONPATH, and prints digests of the files in their folders.

benchmarks/same_results.py runs it with the accel_rl of two checkouts, and writes the runs to standard input as a JSON
object {name: [settings, steps]}. Each line of the output is a JSON object: run, part, digest. It uses little of
accel_rl, so that it works with older and newer commits.
"""

import csv
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import accel_rl
from accel_rl.run_folder.checkpoint import load


def arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yields all arrays that a nested value holds."""
    if isinstance(value, torch.Tensor):
        yield value.detach().cpu().contiguous().numpy()
    elif isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays(item)


def digest(value: Any) -> str:
    """Returns a digest of the arrays in a value, whatever their names and order, and the number of arrays."""
    each = sorted(
        hashlib.sha1(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes()).hexdigest()
        for array in arrays(value)
        if array.size
    )
    return f"{hashlib.sha1(''.join(each).encode()).hexdigest()[:12]}/{len(each)}"


def parts(folder: Path) -> dict[str, str]:
    """Returns the digests of a run's checkpoint, its replays and its log without times."""
    state = load(folder / "checkpoint.pt")
    found = {name: digest(value) for name, value in state.items() if next(arrays(value), None) is not None}
    for file in sorted(folder.glob("replay-*.pt")):
        found[file.stem.split("-")[0]] = digest(load(file))
    with (folder / "progress.csv").open(newline="") as file_:
        rows = [sorted(item for item in row.items() if is_reproducible(item[0])) for row in csv.DictReader(file_)]
    found["log"] = f"{hashlib.sha1(json.dumps(rows).encode()).hexdigest()[:12]}/{len(rows)}"
    return found


def is_reproducible(column: str) -> bool:
    """Tells whether a column of progress.csv is neither a measured time nor a rate."""
    is_measured = column.startswith("time/") or column.endswith("_per_second")
    return not is_measured or column == "time/total_timesteps"


def train(settings: dict[str, Any], steps: int, scratch: Path) -> dict[str, str]:
    """Trains a run as a whole, and again in two halves with a resume between them; returns the digests of both."""
    whole = parts(accel_rl.train(**settings, steps=steps, out=scratch / "whole"))
    half = accel_rl.train(**settings, steps=steps // 2, schedule_steps=steps, out=scratch / "halves")
    accel_rl.train(resume=half, steps=steps)
    return whole | {f"resumed_{part}": found for part, found in parts(half).items() if part != "log"}


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name, (settings, steps) in json.load(sys.stdin).items():
        with tempfile.TemporaryDirectory() as scratch:
            for part, found in train(settings, steps, Path(scratch)).items():
                print(json.dumps({"run": name, "part": part, "digest": found}), flush=True)


if __name__ == "__main__":
    main()
