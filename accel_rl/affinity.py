"""Which of the processors that there are each part of a run is given: decided from what it is told alone."""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from accel_rl.machine import Cpus, Machine, count, read_machine, show_cpus

MAX_LEARNING_THREADS = 16  # the networks of this field gain nothing from more
MAX_SAMPLING_THREADS = 2  # of a batch of half the environments
LEAST_CORES_TO_RESERVE_ONE = 4
WORKERS_TO_KEEP = 0.75  # at least this share of them, when a core is reserved


@dataclass(frozen=True)
class Plan:
    """Who runs where, in a run of num_envs environments. None: wherever the operating system puts it."""

    machine: Machine
    num_envs: int
    worker_cpus: tuple[int | None, ...]  # of each simulator process, in order
    server_cpus: Cpus | None  # of this process, which chooses actions and learns
    sampling_threads: int  # of torch, on the CPU
    learning_threads: int
    warnings: tuple[str, ...] = ()

    @property
    def server_is_reserved(self) -> bool:
        """Whether this process has processors that no worker has."""
        return bool(self.server_cpus and self.worker_cpus and not {*self.server_cpus} & {*self.worker_cpus})

    def lines(self) -> list[str]:
        """For people to read: a line each on the processors, the workers, and this process."""
        server = "not pinned" if self.server_cpus is None else f"on {show_cpus(self.server_cpus)}"
        if self.server_is_reserved:
            server += ", reserved for it"
        return [
            f"processors  {self.machine}",
            f"workers     {self._workers()}",
            f"server      {server}; torch threads: {self.sampling_threads} sampling, {self.learning_threads} learning",
        ]

    def _workers(self) -> str:
        num_workers = len(self.worker_cpus)
        if not num_workers:
            return "none: environments are stepped in this process"
        per_worker = self.num_envs // num_workers
        text = f"{num_workers}, of {count(per_worker, 'environment')}{' each' if num_workers > 1 else ''}: "
        if serves_both_groups(self.num_envs, num_workers):
            return f"{text}{per_worker // 2} of each group, {_on(self.worker_cpus)}"
        half = num_workers // 2
        return f"{text}group 0 {_on(self.worker_cpus[:half])}, group 1 {_on(self.worker_cpus[half:])}"


def make_plan(
    machine: Machine,
    num_envs: int,
    num_workers: int | None = None,
    *,
    on_gpu: bool = False,
    gpu_node: int | None = None,
    sampling_threads: int | None = None,
    learning_threads: int | None = None,
) -> Plan:
    """The plan for a run whose network is on the CPU, or on a GPU of NUMA node gpu_node (None: not known).

    num_workers (0: this process steps the environments) and the threads of torch are picked where None. With a GPU,
    this process has a core of its own if there are enough; on the CPU, simulating and learning take turns on all, but
    of two processors one is left to choose actions."""
    server_cpus, cores, num_busy = machine.cpus if machine.chosen else None, list(machine.cores), machine.num_busy
    if on_gpu and machine.can_pin and min(len(cores), num_busy) >= LEAST_CORES_TO_RESERVE_ONE:
        core = machine.nodes.index(gpu_node) if gpu_node in machine.nodes else 0
        num_left = min(num_busy - 1, len(machine.cpus) - len(cores[core]))
        if num_workers is None:  # 64 environments divide over 16 workers, but not over 15: then the core is needed
            enough = default_workers(num_envs, num_left) >= WORKERS_TO_KEEP * default_workers(num_envs, num_busy)
        else:
            enough = 0 < num_workers <= num_left
        if enough:
            server_cpus, num_busy = cores.pop(core), num_left
    elif not on_gpu and num_workers is None and num_busy == 2:
        # One simulates, the other chooses actions, both learn. Two workers beside the network: A2C on Pong trained 12
        # to 15 % slower, PPO 30 %.
        num_busy, sampling_threads = 1, sampling_threads or 1
    cpus = _spread(cores)
    picked = default_workers(num_envs, num_busy)
    warnings = []
    if num_workers is None:
        num_workers = picked
        if picked < num_busy:
            more = -(-num_envs // (2 * num_busy)) * 2 * num_busy
            warnings.append(
                f"envs={num_envs} keep {picked} of {num_busy} processors busy; --envs {more} would use them all"
            )
    elif num_workers > num_busy:
        warnings.append(
            f"workers={num_workers} share {count(num_busy, 'processor')}; --workers {picked} would have one each"
        )
    num_threads = 1 if on_gpu else machine.num_busy  # beside a GPU there is next to nothing for them to do
    return Plan(
        machine,
        num_envs,
        tuple(cpus[worker % len(cpus)] if machine.can_pin else None for worker in range(num_workers)),
        server_cpus,
        sampling_threads or min(num_threads, MAX_SAMPLING_THREADS),
        learning_threads or min(num_threads, MAX_LEARNING_THREADS),
        tuple(warnings),
    )


def _spread(cores: list[Cpus]) -> list[int]:
    """One processor of each core, then the second of each, ...: the order in which workers take them.

    So few workers have cores of their own, and where each worker serves one group (the first half of them group 0), the
    two groups are on sibling threads of the same cores: while one waits for actions, the other has the core."""
    most = max(map(len, cores))
    return [core[thread] for thread in range(most) for core in cores if thread < len(core)]


def default_worker_cpus(num_workers: int) -> list[int | None]:
    """The processor of each worker where nobody has made a plan."""
    return list(make_plan(read_machine(), 2 * num_workers, num_workers).worker_cpus)


# ---- how environments divide ----


def fits(num_envs: int, num_workers: int) -> bool:
    """Whether each worker has as many of each of the two groups, or each group as many workers."""
    return num_envs % math.lcm(2, num_workers) == 0


def serves_both_groups(num_envs: int, num_workers: int) -> bool:
    """Whether each worker has environments of both groups; else the first half of the workers serves group 0."""
    return num_envs % (2 * num_workers) == 0


def default_workers(num_envs: int, num_cpus: int) -> int:
    """One simulator process a processor if the environments divide over them, else fewer."""
    return next((n for n in range(num_cpus, 1, -1) if fits(num_envs, n)), 1)


def _on(cpus: tuple[int | None, ...]) -> str:
    return f"on {show_cpus(known)}" if (known := {cpu for cpu in cpus if cpu is not None}) else "not pinned"


@contextlib.contextmanager
def pinned(cpus: Cpus | None) -> Iterator[None]:
    """Meanwhile every thread of this process is on the given processors, and whatever it starts. None: no change."""
    if cpus is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    _pin_threads(set(cpus))
    try:
        yield
    finally:
        _pin_threads(usual)


def _pin_threads(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cpus)
