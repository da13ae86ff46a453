"""Reads this process's logical CPUs (hardware threads, as the operating system numbers them) and their cores."""

import contextlib
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accel_rl.errors import UsageError, count

Cpus = tuple[int, ...]


@dataclass(frozen=True)
class CpuTopology:
    """The logical CPUs that a run, or one of its learners, may use.

    cores: the logical CPUs of each physical core; NUMA nodes take turns. nodes: the NUMA node of each core.
    num_online: logical CPUs of the whole machine.
    quota: CPU time per second of wall time (`docker --cpus`, Kubernetes, SLURM); None: no limit.
    can_pin: the system can bind processes to logical CPUs.
    chosen: True for a selection of the process's logical CPUs, by name or as one learner's part; False for all of them.
    """

    cores: tuple[Cpus, ...]
    nodes: tuple[int, ...]
    num_online: int
    quota: float | None = None
    can_pin: bool = True
    chosen: bool = False

    @property
    def cpus(self) -> Cpus:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    @property
    def num_busy(self) -> int:
        """The number of logical CPUs that can be busy all the time: all of them, or fewer under a quota."""
        return len(self.cpus) if self.quota is None else min(len(self.cpus), max(1, int(self.quota + 0.5)))

    def __str__(self) -> str:
        threads = sorted({len(core) for core in self.cores})
        num_nodes = len(set(self.nodes))
        return (
            f"{show_cpus(self.cpus)} (of {self.num_online}): {count(len(self.cores), 'core')} with "
            f"{' or '.join(map(str, threads))} {'thread' if threads == [1] else 'threads'}, "
            f"{count(num_nodes, 'NUMA node')}, quota {'none' if self.quota is None else f'{self.quota:g}'}"
        )


def read_topology(chosen: str = "all", root: Path = Path("/")) -> CpuTopology:
    """Returns the logical CPUs that this process may use, or only the chosen ones, as in 0-7,16-23.

    Raises UsageError if this process may not use one of them. root: the folder of /sys and /proc."""
    allowed = available_cpus()
    online = sorted({*_read_cpus(root / "sys/devices/system/cpu/online"), *allowed})
    can_pin = hasattr(os, "sched_setaffinity")
    if chosen != "all" and not can_pin:
        raise UsageError(f"cpus={chosen!r}: this system cannot bind processes to logical CPUs; omit --cpus")
    cpus = allowed if chosen == "all" else _choose(chosen, allowed, online)
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    node_of = {cpu: int(folder.name[4:]) for folder in folders for cpu in _read_cpus(folder / "cpulist")}
    on_node: dict[int, list[Cpus]] = {}
    for core in physical_cores(cpus, root):
        on_node.setdefault(node_of.get(core[0], 0), []).append(tuple(core))
    turns = sorted((turn, node) for node, cores in on_node.items() for turn in range(len(cores)))
    cores = tuple(on_node[node][turn] for turn, node in turns)
    return CpuTopology(cores, tuple(n for _, n in turns), len(online), read_quota(root), can_pin, chosen != "all")


def available_cpus() -> list[int]:
    """Returns the logical CPUs that this process may use (`taskset`, `docker --cpuset-cpus`, SLURM restrict them)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus: list[int], root: Path = Path("/")) -> list[list[int]]:
    """Groups logical CPUs by physical core: a group holds the core's hardware threads."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        siblings = _read_cpus(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(tuple(siblings) or (cpu,), []).append(cpu)
    return list(cores.values())


def read_quota(root: Path = Path("/")) -> float | None:
    """Returns the smallest CPU quota of this process's control groups, in CPUs; None: no limit."""
    quotas = map(_quota_of, control_groups("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Returns the folders of this process's control groups (version 1 or 2), up to the topmost; some may not exist.

    controller: cpu, memory or pids. root: the folder of /sys and /proc."""
    try:
        groups = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        groups = [["", "/"], [controller, "/"]]
    mounted = root / "sys/fs/cgroup"
    folders = []
    for controllers, path in groups:
        if controllers and controller not in controllers.split(","):
            continue
        parts = path.strip("/").split("/")
        # Version 2 names no controllers. A container may see its own group as the topmost one, and not under its path.
        for mount in (mounted / controllers, mounted / (controller if controllers else "unified")):
            folders += [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return list(dict.fromkeys(folders))


def _quota_of(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):  # a group without a limit has no number, or no file
        if (group / "cpu.max").exists():
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(limit) / float(period) if float(limit) > 0 else None
    return None


def _choose(text: str, allowed: list[int], online: list[int]) -> list[int]:
    try:
        cpus = parse_cpus(text)
    except ValueError:
        raise UsageError(f"cpus={text!r} must be a list of logical CPUs as in 0-7,16-23, or all") from None
    for known, what in ((online, "exist on this machine"), (allowed, "are allowed to this process")):
        if unknown := set(cpus) - set(known):
            raise UsageError(f"cpus={text!r} names {show_cpus(unknown)}, but only {show_cpus(known)} {what}")
    return cpus


def parse_cpus(text: str) -> list[int]:
    """Returns the numbers in a list such as 0-3,8, sorted. Raises ValueError for any other text."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(text)
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(cpus)


def read_file(path: Path) -> str:
    """Returns a file's text without white space at its ends; an empty string if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read_cpus(path: Path) -> list[int]:
    with contextlib.suppress(ValueError):
        return parse_cpus(read_file(path))
    return []


def show_cpus(cpus: Iterable[int]) -> str:
    """Returns numbers in the form that parse_cpus reads: 0-3,8."""
    known = set(cpus)
    firsts = [cpu for cpu in sorted(known) if cpu - 1 not in known]
    lasts = [cpu for cpu in sorted(known) if cpu + 1 not in known]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def loopback_interface() -> str | None:
    """Returns the name of the loopback network interface, such as lo; None if there is none."""
    return next((name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name)), None)
