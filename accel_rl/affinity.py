"""Which processor each simulator process is pinned to.

Only processors that this process may use are given out (containers and batch systems restrict them).
"""

import os
import sys
from pathlib import Path


def available_cpus() -> list[int]:
    """The logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus: list[int], sysfs: Path = Path("/sys/devices/system/cpu")) -> list[list[int]]:
    """The given logical processors, those of one core (its hyperthreads) together."""
    cores: dict[str, list[int]] = {}
    for cpu in cpus:
        try:
            siblings = (sysfs / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings, []).append(cpu)
    return list(cores.values())


def worker_cpus(num_workers: int, cores: list[list[int]]) -> list[int | None]:
    """The processor of each worker, group 0 first.

    The workers of each group are spread over the cores, so that each core has workers of both groups (on its two
    hyperthreads, where it has them): while one waits for actions the other steps. None where pinning is not possible.
    """
    if sys.platform != "linux":
        return [None] * num_workers
    per_group = num_workers // 2
    # With fewer workers than two a core, the second group goes to the cores that the first one has left free.
    first = [0, 0 if per_group >= len(cores) else per_group]
    return [
        core[group % len(core)]
        for group in range(2)
        for core in (cores[(first[group] + worker) % len(cores)] for worker in range(per_group))
    ]


def default_workers(num_envs: int, num_cores: int) -> int:
    """Two simulator processes a core, one of each group, if the environments divide over them; else fewer."""
    return next((n for n in range(2 * num_cores, 1, -2) if num_envs % n == 0), 2)
