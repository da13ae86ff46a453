"""Tests of which logical CPUs and how much of their time a process has, on machines of every shape."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from accel_rl.errors import UsageError
from accel_rl.hardware.placement import make_plan
from accel_rl.hardware.topology import parse_cpus, read_quota, read_topology, show_cpus
from tests.helpers.machines import EIGHT, write


def test_without_sysfs_and_without_pinning(tmp_path: Path, monkeypatch: Any) -> None:
    """Systems without sysfs or pinning get a plan without pinned processes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert make_plan(read_topology(root=tmp_path), 8, 2).worker_cpus == (3, 5)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    plan = make_plan(read_topology(root=tmp_path), 16, on_gpu=True)
    assert (plan.worker_cpus, plan.server_cpus) == ((None,) * 4, None)
    assert plan.lines()[1:] == [
        "workers     4, of 4 environments each: 2 of each group, not pinned",
        "server      not pinned; torch threads: 1 sampling, 1 learning",
    ]
    with pytest.raises(UsageError, match="cannot bind processes"):
        read_topology("0-1", tmp_path)


V1 = "3:cpuset:/a\n2:cpu,cpuacct:/a/b\n0::/"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"self": "0::/", "cpu.max": "150000 100000"}, 1.5),  # a container
        ({"self": "0::/a/b", "a/b/cpu.max": "max 100000", "a/cpu.max": "200000 50000"}, 4.0),  # SLURM limits the parent
        ({"self": "0::/a/b", "a/b/cpu.max": "100000 100000", "a/cpu.max": "200000 100000"}, 1.0),
        ({"self": "0::/a", "b/cpu.max": "100000 100000"}, None),  # another group's
        ({"self": V1, "cpu,cpuacct/a/b/cpu.cfs_quota_us": "50000", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}, 0.5),
        ({"self": V1, "cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ({"self": V1, "cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),  # docker
        ({"self": V1, "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"self": V1, "unified/cpu.max": "100000 100000"}, 1.0),
        ({"self": "0::/", "cpu.max": "what is this"}, None),
        ({}, None),
    ],
)
def test_quotas(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    """The quota is the tightest limit of the process's control groups."""
    write(tmp_path, {"proc/self/cgroup" if name == "self" else f"sys/fs/cgroup/{name}": t for name, t in files.items()})
    assert read_quota(tmp_path) == quota


def test_lists_of_logical_cpus() -> None:
    """Lists of logical CPUs are read as they are written, and wrong ones are refused."""
    assert parse_cpus(" 3, 0-1 ,8-8\n") == [0, 1, 3, 8]
    assert show_cpus([8, 3, 1, 0]) == "0-1,3,8"
    assert show_cpus(()) == ""
    for text in ("", "a", "1-", "-1", "3-2", "1,,2", "0-1-2", "1;2", "0-99999999999"):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            parse_cpus(text)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("", "must be a list of logical CPUs as in 0-7,16-23, or all"),
        ("0-", "must be a list"),
        ("0-3,16-17,20", "names 16-17,20, but only 0-15 exist on this machine"),
        ("0-3,7-8", "names 3,7, but only 0-2,8-9 are allowed to this process"),
    ],
)
def test_logical_cpus_that_are_not_there(chosen: str, message: str, topology: Any) -> None:
    """Logical CPUs that are missing or not allowed are one usage error."""
    with pytest.raises(UsageError, match=message):
        topology(EIGHT, allowed="0-2,8-9", chosen=chosen)
