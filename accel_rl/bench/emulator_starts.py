"""Measures how long the emulator takes to start, beside importing torch, and how much memory it needs."""

import statistics
import subprocess
import sys
import tempfile
from typing import Any

from accel_rl.bench.timing import ratio
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.processes.spawning import child_environment

NUM_STARTS = 5
IMPORT_TORCH = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"
START = """
import time
import numpy as np
import psutil
import accel_rl.emulator
def mb(kind): return sum(getattr(each, kind) for each in psutil.Process().memory_maps()) / 2**20
before, start = [mb(kind) for kind in ("private_dirty", "rss")], time.perf_counter()
atari = accel_rl.emulator.BatchAtari("pong", 1)
print(time.perf_counter() - start, mb("private_dirty") - before[0], mb("rss") - before[1])
"""


def run_starts() -> dict[str, Any]:
    """Returns the seconds of starts in new processes, in turns: importing torch, the emulator's first start, which
    compiles it, and a later one; and the memory of a process that has started it, in MB."""
    seconds: dict[str, list[float]] = {"import torch": [], "first start": [], "later start": []}
    memory = []
    for index in range(NUM_STARTS):
        print(f"\rstarts: round {index + 1} of {NUM_STARTS}", end="", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as cache:
            seconds["import torch"].append(_measure(IMPORT_TORCH, cache)[0])
            seconds["first start"].append(_measure(START, cache)[0])
            later, *used = _measure(START, cache)
            seconds["later start"].append(later)
            memory.append(used)
    print("\r" + " " * 30 + "\r", end="", file=sys.stderr, flush=True)
    own_mb, resident_mb = map(statistics.median, zip(*memory, strict=True))
    return {
        "seconds": seconds,
        "ratios": {name: ratio(seconds[name], seconds["import torch"]) for name in ("first start", "later start")},
        "own_mb": own_mb,
        "resident_mb": resident_mb,
        "state_bytes": 4 * STATE_WORDS,
    }


def _measure(code: str, cache: str) -> list[float]:
    """Runs a program in a new process with this folder for caches; returns the numbers that it prints."""
    environment = {**child_environment(), "XDG_CACHE_HOME": cache}
    return [
        float(word) for word in subprocess.check_output([sys.executable, "-P", "-c", code], env=environment).split()
    ]
