"""Machines of every shape, as /sys and /proc would show them."""

import os
import shutil
from pathlib import Path
from typing import Any

from accel_rl.hardware.topology import CpuTopology, parse_cpus, read_topology

EIGHT = [f"{n},{n + 8}" for n in range(8)]  # 8 cores of 2 threads
TWO_NODES: dict[str, Any] = {"cores": EIGHT, "nodes": ["0-3,8-11", "4-7,12-15"]}


def write(root: Path, files: dict[str, str]) -> Path:
    """Writes files under root, each with a newline at its end; returns root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def build_topology(
    root: Path,
    monkeypatch: Any,
    cores: list[str],
    nodes: list[str] | None = None,
    allowed: str | None = None,
    quota: float | None = None,
    chosen: str = "all",
    group: str = "job",
) -> CpuTopology:
    """Builds a machine under root from its cores (lists of siblings), its nodes, and what this process may use.

    quota: of the topmost control group on this process's path."""
    online = ",".join(cores)
    cpus = "sys/devices/system/cpu"
    files = {f"{cpus}/cpu{cpu}/topology/thread_siblings_list": core for core in cores for cpu in parse_cpus(core)}
    files |= {f"sys/devices/system/node/node{node}/cpulist": text for node, text in enumerate(nodes or [])}
    files |= {f"{cpus}/online": online, "proc/self/cgroup": f"0::/{group}"}
    limit = "max" if quota is None else f"{quota * 100_000:.0f}"
    shutil.rmtree(root / "sys", ignore_errors=True)  # a test may build several, one after another
    write(root, {**files, f"sys/fs/cgroup/{group.split('/')[0]}/cpu.max": f"{limit} 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(parse_cpus(allowed or online)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    return read_topology(chosen, root)
