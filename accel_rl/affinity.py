"""Which processors this process has, and which of them each part of a run is given.

`read_machine` looks; `make_plan` decides, from what it is told alone. A processor is a logical one (a hardware thread),
by the operating system's number; a core has one or more of them.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accel_rl.errors import UsageError

MAX_LEARNING_THREADS = 16  # the networks of this field gain nothing from more
MAX_SAMPLING_THREADS = 2  # of a batch of half the environments
LEAST_CORES_TO_RESERVE_ONE = 4
WORKERS_TO_KEEP = 0.75  # at least this share of them, when a core is reserved

Cpus = tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """The part of this machine that the run may use."""

    cores: tuple[Cpus, ...]  # the processors of each physical core; NUMA nodes take turns
    nodes: tuple[int, ...]  # the NUMA node of each core
    num_online: int  # processors in all
    quota: float | None = None  # processor time in processors (`docker --cpus`, Kubernetes, SLURM); None: no limit
    can_pin: bool = True
    chosen: bool = False  # by name, from among those that the process may use

    @property
    def cpus(self) -> Cpus:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    @property
    def num_busy(self) -> int:
        """How many processors there is time for."""
        return len(self.cpus) if self.quota is None else min(len(self.cpus), max(1, int(self.quota + 0.5)))

    def __str__(self) -> str:
        threads = sorted({len(core) for core in self.cores})
        num_nodes = len(set(self.nodes))
        return (
            f"{show_cpus(self.cpus)} (of {self.num_online}): {_count(len(self.cores), 'core')} with "
            f"{' or '.join(map(str, threads))} {'thread' if threads == [1] else 'threads'}, "
            f"{_count(num_nodes, 'NUMA node')}, quota {'none' if self.quota is None else f'{self.quota:g}'}"
        )


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
        text = f"{num_workers}, of {_count(per_worker, 'environment')}{' each' if num_workers > 1 else ''}: "
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
            f"workers={num_workers} share {_count(num_busy, 'processor')}; --workers {picked} would have one each"
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


# ---- looking at the machine ----


def has_bf16(root: Path = Path("/")) -> bool:
    """Whether these processors calculate in bfloat16 themselves, as far as /proc tells; others do it in float32."""
    try:
        flags = (root / "proc/cpuinfo").read_text().split()
    except OSError:
        return True
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def read_machine(chosen: str = "all", root: Path = Path("/")) -> Machine:
    """chosen: the processors to use, as in 0-7,16-23. Raises UsageError for those that this process may not use.

    root: where /sys and /proc are."""
    allowed = available_cpus()
    online = sorted({*_read_cpus(root / "sys/devices/system/cpu/online"), *allowed})
    can_pin = hasattr(os, "sched_setaffinity")
    if chosen != "all" and not can_pin:
        raise UsageError(f"cpus={chosen!r}: processes can't be bound to processors on this system; leave it away")
    cpus = allowed if chosen == "all" else _choose(chosen, allowed, online)
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    node_of = {cpu: int(folder.name[4:]) for folder in folders for cpu in _read_cpus(folder / "cpulist")}
    on_node: dict[int, list[Cpus]] = {}
    for core in physical_cores(cpus, root):
        on_node.setdefault(node_of.get(core[0], 0), []).append(tuple(core))
    turns = sorted((turn, node) for node, cores in on_node.items() for turn in range(len(cores)))
    cores = tuple(on_node[node][turn] for turn, node in turns)
    return Machine(cores, tuple(n for _, n in turns), len(online), read_quota(root), can_pin, chosen != "all")


def available_cpus() -> list[int]:
    """The processors that this process may run on (`taskset`, `docker --cpuset-cpus` and SLURM restrict them)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus: list[int], root: Path = Path("/")) -> list[list[int]]:
    """The given processors, those of one core (its hyperthreads) together."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        siblings = _read_cpus(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(tuple(siblings) or (cpu,), []).append(cpu)
    return list(cores.values())


def read_quota(root: Path = Path("/")) -> float | None:
    """The least quota of processor time, in processors, of the control groups that this process is in; None: none."""
    try:
        groups = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    mounted = root / "sys/fs/cgroup"
    folders = []
    for controllers, path in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = path.strip("/").split("/")
        # Version 2 names no controllers. A container may see its own group as the topmost one, and not under its path.
        for mount in (mounted / controllers, mounted / ("cpu" if controllers else "unified")):
            folders += [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    quota = min(map(_quota_of, folders), default=math.inf)
    return None if quota == math.inf else quota


def _quota_of(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.inf if limit == "max" or float(limit) <= 0 else float(limit) / float(period)
    except (OSError, ValueError):
        return math.inf


def _choose(text: str, allowed: list[int], online: list[int]) -> list[int]:
    try:
        cpus = parse_cpus(text)
    except ValueError:
        raise UsageError(f"cpus={text!r} must be a list of processors as in 0-7,16-23, or all") from None
    for known, what in ((online, "exist on this machine"), (allowed, "are allowed to this process")):
        if unknown := set(cpus) - set(known):
            raise UsageError(f"cpus={text!r}: of these, {show_cpus(unknown)} do not; {show_cpus(known)} {what}")
    return cpus


def parse_cpus(text: str) -> list[int]:
    """The processors of a list as in 0-3,8. Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(text)
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(cpus)


def _read_cpus(path: Path) -> list[int]:
    try:
        return parse_cpus(path.read_text())
    except (OSError, ValueError):
        return []


def show_cpus(cpus: "set[int] | list[int] | Cpus") -> str:
    """As parse_cpus reads it: 0-3,8."""
    known = set(cpus)
    firsts = [cpu for cpu in sorted(known) if cpu - 1 not in known]
    lasts = [cpu for cpu in sorted(known) if cpu + 1 not in known]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def _on(cpus: tuple[int | None, ...]) -> str:
    return f"on {show_cpus(known)}" if (known := {cpu for cpu in cpus if cpu is not None}) else "not pinned"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


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
