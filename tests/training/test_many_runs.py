"""Many trainings in one process, as in a hyperparameter search: each leaves nothing behind for the next."""

import gc
import threading
from pathlib import Path

import psutil
import pytest

import accel_rl
from tests.helpers.runs import TINY_RUN, TINY_SERIAL_RUN

WARM_UP, NUM_RUNS = 20, 100  # PyTorch and the allocator keep memory of the first runs
GROWTH_BYTES = 40_000  # per run; a leaked network or environment would be larger


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "num_runs"), [("serial", NUM_RUNS), ("workers", 40)])
def test_nothing_of_a_training_is_left_to_the_next(kind: str, num_runs: int, tmp_path: Path) -> None:
    """Descriptors, children, threads and memory of a process stay the same, however often it trains.

    Stable-Baselines3 had a report of such a leak (2.9.2, issue 1966)."""
    process, memory = psutil.Process(), list[int]()
    settings = (TINY_SERIAL_RUN if kind == "serial" else TINY_RUN) | {"algo": "a2c", "steps": 40}
    for index in range(num_runs):
        accel_rl.train(**settings, seed=index, out=tmp_path / "run", overwrite=True)
        gc.collect()
        memory.append(process.memory_info().rss)
        if index == WARM_UP:
            before = process.num_fds(), len(process.children(recursive=True)), threading.active_count()
    assert (process.num_fds(), len(process.children(recursive=True)), threading.active_count()) == before
    grown = memory[-1] - memory[WARM_UP]
    assert grown < GROWTH_BYTES * (num_runs - WARM_UP), f"{grown / 1e6:.1f} MB in {num_runs - WARM_UP} runs"
