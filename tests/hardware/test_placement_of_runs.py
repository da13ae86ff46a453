"""Which processors a run finds and how it deals them out, on machines of every shape."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_rl.cli import main
from accel_rl.errors import UsageError
from accel_rl.hardware import placement
from accel_rl.hardware.placement import Plan, default_workers, make_plan
from accel_rl.hardware.topology import available_cpus, parse_cpus, read_machine, read_quota, show_cpus
from accel_rl.samplers.base import SamplerConfig
from accel_rl.training import resolve as resolving
from accel_rl.training.build import sampler_config
from accel_rl.training.resolve import resolve
from tests.helpers.machines import EIGHT, TWO_NODES, build_machine, write

ONLINE = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
needs_pinning = pytest.mark.skipif(sys.platform != "linux", reason="processes can't be pinned here")
needs_two = pytest.mark.skipif(len(ONLINE) < 2, reason="a single processor")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: Any) -> Any:
    return partial(build_machine, tmp_path, monkeypatch)


# machine, environments, the processor of each worker, what is said about processors
PLANS: dict[str, tuple[dict[str, Any], int, list[int], str]] = {
    "one processor": ({"cores": ["0"]}, 16, [0], "0 (of 1): 1 core with 1 thread, 1 NUMA node, quota none"),
    "two cores": ({"cores": ["0", "1"]}, 16, [0], "0-1 (of 2): 2 cores with 1 thread"),
    "hyperthreads": ({"cores": EIGHT}, 32, [*range(16)], "0-15 (of 16): 8 cores with 2 threads"),
    "siblings side by side": ({"cores": ["0-1", "2-3"]}, 8, [0, 2, 1, 3], "2 cores with 2 threads"),
    "one group each, on sibling threads": ({"cores": EIGHT}, 16, [*range(16)], "8 cores"),
    "nodes take turns": (TWO_NODES, 16, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15], "2 NUMA nodes"),
    "one sibling of some": (
        {"cores": EIGHT, "allowed": "0-2,8,13"},
        20,
        [0, 1, 2, 13, 8],
        "4 cores with 1 or 2 threads",
    ),
    "a node out of bounds": (
        {**TWO_NODES, "allowed": "4-7"},
        8,
        [4, 5, 6, 7],
        "4-7 (of 16): 4 cores with 1 thread",
    ),
    "some offline": ({"cores": ["0", "2,6", "3"]}, 8, [0, 2, 3, 6], "0,2-3,6 (of 4)"),
    "quota": ({"cores": EIGHT, "quota": 1.5}, 16, [0], "quota 1.5"),
    "quota of nearly nothing": ({"cores": EIGHT, "quota": 0.2}, 16, [0], "quota 0.2"),
    "quota beyond the machine": ({"cores": ["0", "1"], "quota": 8}, 16, [0], "quota 8"),
    "chosen": ({**TWO_NODES, "chosen": "4-5,12"}, 6, [4, 5, 12], "4-5,12 (of 16): 2 cores with 1 or 2 threads"),
}


@pytest.mark.parametrize("name", PLANS)
def test_workers_on_processors(name: str, machine: Any) -> None:
    """Would catch workers on a processor that is not there or not ours, two on one, or idle cores beside busy ones."""
    has, num_envs, expected, said = PLANS[name]
    plan = make_plan(machine(**has), num_envs)
    assert list(plan.worker_cpus) == expected
    assert plan.server_cpus == (plan.machine.cpus if "chosen" in has else None)
    assert said in plan.lines()[0]
    assert plan.warnings == ()
    assert plan.learning_threads == plan.machine.num_busy
    of_two = plan.machine.num_busy == 2  # one is left to choose actions
    assert plan.sampling_threads == (1 if of_two else min(2, len(expected)))


def test_workers_that_are_asked_for_are_there(machine: Any) -> None:
    """Would catch a user's choice that two processors overrule."""
    plan = make_plan(machine(["0", "1"]), 16, 2, sampling_threads=2)
    assert plan.worker_cpus == (0, 1) and plan.sampling_threads == 2


def test_each_core_has_both_groups(machine: Any) -> None:
    """Would catch workers of one group on both threads of a core, where each worker serves one group."""
    for has in ({"cores": EIGHT}, TWO_NODES):
        plan = make_plan(machine(**has), num_envs=16)
        groups = [{cpu % 8 for cpu in half if cpu is not None} for half in (plan.worker_cpus[:8], plan.worker_cpus[8:])]
        assert groups == [set(range(8))] * 2
        assert plan.lines()[1] == "workers     16, of 1 environment each: group 0 on 0-7, group 1 on 8-15"
    assert make_plan(machine(EIGHT), 32).lines()[1].endswith("16, of 2 environments each: 1 of each group, on 0-15")


@pytest.mark.parametrize(
    ("has", "node", "server", "workers"),
    [
        ({"cores": ["0", "1", "2"]}, None, None, [0, 1, 2]),  # too few cores to spare one
        ({"cores": ["0", "1", "2", "3"]}, None, (0,), [1, 2, 3]),
        (TWO_NODES, None, (0, 8), [4, 1, 5, 2, 6, 3, 7, 12, 9, 13, 10, 14, 11, 15]),
        (TWO_NODES, 1, (4, 12), [0, 1, 5, 2, 6, 3, 7, 8, 9, 13, 10, 14, 11, 15]),
        (TWO_NODES, 7, (0, 8), [4, 1, 5, 2, 6, 3, 7, 12, 9, 13, 10, 14, 11, 15]),
        ({"cores": EIGHT, "quota": 4}, None, (0, 8), [1, 2, 3]),
        ({"cores": EIGHT, "quota": 2}, None, None, [0, 1]),
        ({"cores": EIGHT}, None, None, [*range(16)]),  # whose environments would divide over 8 only
    ],
)
def test_beside_a_gpu_the_server_has_a_core(
    has: dict[str, Any], node: int | None, server: Any, workers: list[int], machine: Any
) -> None:
    """Would catch workers on the core of the one process that they all wait for, or a quota promised twice."""
    plan = make_plan(machine(**has), 2 * len(workers), on_gpu=True, gpu_node=node)
    assert (plan.server_cpus, list(plan.worker_cpus)) == (server, workers)
    assert (plan.sampling_threads, plan.learning_threads) == (1, 1)
    assert ("reserved for it" in plan.lines()[2]) == (server is not None)


def test_what_does_not_match_is_said(machine: Any) -> None:
    """Would catch idle or shared processors that nobody is told of."""
    wide = machine(EIGHT)
    few = make_plan(machine(**TWO_NODES), 4)
    assert list(few.worker_cpus) == [0, 4, 1, 5]
    (text,) = few.warnings
    assert text == "envs=4 keep 4 of 16 processors busy; --envs 32 would use them all"
    crowded = make_plan(wide, 64, 32)
    assert crowded.warnings == ("workers=32 share 16 processors; --workers 16 would have one each",)
    assert list(crowded.worker_cpus) == [*range(16), *range(16)]
    assert make_plan(wide, 64, 2).warnings == ()  # as it was asked for
    large = make_plan(machine([f"{n},{n + 64}" for n in range(64)]), 256)
    assert len(large.worker_cpus) == 128 and all(len(line) < 120 for line in large.lines())
    alone = make_plan(wide, 16, 0, on_gpu=True)
    assert (alone.worker_cpus, alone.server_cpus, alone.warnings) == ((), None, ())
    assert alone.lines()[1] == "workers     none: environments are stepped in this process"


def test_without_sysfs_and_without_pinning(tmp_path: Path, monkeypatch: Any) -> None:
    """Would catch a system (macOS, a bare container) on which nothing could be trained."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert make_plan(read_machine(root=tmp_path), 8, 2).worker_cpus == (3, 5)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    plan = make_plan(read_machine(root=tmp_path), 16, on_gpu=True)
    assert (plan.worker_cpus, plan.server_cpus) == ((None,) * 4, None)
    assert plan.lines()[1:] == [
        "workers     4, of 4 environments each: 2 of each group, not pinned",
        "server      not pinned; torch threads: 1 sampling, 1 learning",
    ]
    with pytest.raises(UsageError, match="can't be bound"):
        read_machine("0-1", tmp_path)


V1 = "3:cpuset:/a\n2:cpu,cpuacct:/a/b\n0::/"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"self": "0::/", "cpu.max": "150000 100000"}, 1.5),  # in a container
        ({"self": "0::/a/b", "a/b/cpu.max": "max 100000", "a/cpu.max": "200000 50000"}, 4.0),  # SLURM limits the parent
        ({"self": "0::/a/b", "a/b/cpu.max": "100000 100000", "a/cpu.max": "200000 100000"}, 1.0),
        ({"self": "0::/a", "b/cpu.max": "100000 100000"}, None),  # somebody else's
        ({"self": V1, "cpu,cpuacct/a/b/cpu.cfs_quota_us": "50000", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}, 0.5),
        ({"self": V1, "cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        (
            {"self": V1, "cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2.0,
        ),  # docker
        ({"self": V1, "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"self": V1, "unified/cpu.max": "100000 100000"}, 1.0),
        ({"self": "0::/", "cpu.max": "what is this"}, None),
        ({}, None),
    ],
)
def test_quotas(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    """Would catch a container whose share of time is taken for the whole machine."""
    write(tmp_path, {"proc/self/cgroup" if name == "self" else f"sys/fs/cgroup/{name}": t for name, t in files.items()})
    assert read_quota(tmp_path) == quota


def test_lists_of_processors() -> None:
    """Would catch a list that is read otherwise than it is written."""
    assert parse_cpus(" 3, 0-1 ,8-8\n") == [0, 1, 3, 8]
    assert show_cpus([8, 3, 1, 0]) == "0-1,3,8"
    assert show_cpus(()) == ""
    for text in ("", "a", "1-", "-1", "3-2", "1,,2", "0-1-2", "1;2", "0-99999999999"):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            parse_cpus(text)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("", "must be a list of processors as in 0-7,16-23, or all"),
        ("0-", "must be a list"),
        ("0-3,16-17,20", "of these, 16-17,20 do not; 0-15 exist on this machine"),
        ("0-3,7-8", "of these, 3,7 do not; 0-2,8-9 are allowed to this process"),
    ],
)
def test_processors_that_are_not_there(chosen: str, message: str, machine: Any) -> None:
    """Would catch workers that fail to start, one by one, instead of one clear line."""
    with pytest.raises(UsageError, match=message):
        machine(EIGHT, allowed="0-2,8-9", chosen=chosen)


@pytest.mark.parametrize(
    ("num_envs", "num_cpus", "expected"),
    [
        (16, 2, 2),
        (16, 16, 16),
        (16, 64, 16),
        (16, 6, 4),
        (16, 1, 1),
        (2, 8, 2),
        (20, 8, 5),
        (6, 3, 3),
        (18, 4, 3),
        (5, 4, 1),
    ],
)
def test_workers_divide_the_environments(num_envs: int, num_cpus: int, expected: int) -> None:
    """Would catch a default that the sampler refuses, or that leaves processors idle without need."""
    assert default_workers(num_envs, num_cpus) == expected
    if num_envs % 2 == 0:
        SamplerConfig(num_envs, 5, expected)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"num_envs": 8, "num_workers": 3}, "envs=8 .* workers=3 in 2 groups; use 2 or 4 workers, or 6 or 12 envs"),
        ({"num_envs": 6, "num_workers": 8}, "use 6 workers, or 8 envs"),
        ({"num_envs": 8, "num_workers": 4, "num_evaluation_envs": 6}, "use 3 or 6 workers, or 4 or 8 evaluation_envs"),
        ({"num_envs": 2, "num_workers": 2, "num_evaluation_envs": 1}, "evaluation_envs=1 does not split into 2 groups"),
    ],
)
def test_errors_name_numbers_that_divide(numbers: dict[str, int], message: str) -> None:
    """Would catch an error that leaves it to the user to find numbers that fit."""
    with pytest.raises(UsageError, match=message):
        SamplerConfig(horizon=5, **numbers)


# ---- settings ----

TINY: dict[str, Any] = {"env": "CartPole-v1", "envs": 8, "device": "cpu"}


def plan_of(**settings: Any) -> Plan:
    return resolve({**TINY, **settings}).plan


@needs_pinning
def test_settings_say_how_many() -> None:
    """Would catch a flag that is not obeyed, or one that a file's other way of saying it contradicts."""
    assert len(plan_of(workers=4).worker_cpus) == 4
    pinned = resolve({**TINY, "cpus": str(ONLINE[-1]), "workers": 4})
    assert sampler_config(pinned).worker_cpus == pinned.plan.worker_cpus
    assert set(pinned.plan.worker_cpus) <= {ONLINE[-1]}
    assert len(plan_of(envs_per_worker=2).worker_cpus) == 4
    assert len(plan_of(envs_per_worker=2, workers=4).worker_cpus) == 4
    assert (plan_of(sampling_threads=3).sampling_threads, plan_of(learning_threads=5).learning_threads) == (3, 5)
    resolved = resolve({**TINY, "envs_per_worker": 2})
    assert (resolved.as_dict()["workers"], resolved.as_dict()["envs_per_worker"]) == (4, None)
    assert resolve(resolving.overlay(resolved.as_dict(), {"envs_per_worker": 4})).workers == 2
    assert resolve({**TINY, "sampler": "serial", "workers": 4}).as_dict()["workers"] == 4
    for settings, message in (
        ({"envs_per_worker": 3}, "envs=8 is not a multiple of envs_per_worker=3"),
        ({"envs_per_worker": 2, "workers": 2}, "workers=2 and envs_per_worker=2 contradict each other"),
        ({"envs_per_worker": 0}, "envs_per_worker=0 must be at least 1"),
        ({"envs_per_worker": -1}, "envs_per_worker=-1 must be at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            plan_of(**settings)


def show(*words: Any) -> list[str]:
    return ["train", "--show-affinity", "--env", "CartPole-v1", "--device", "cpu", *map(str, words)]


def test_it_is_shown_and_nothing_else_happens(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    """Would catch a run, or a folder, that was not asked for."""
    monkeypatch.chdir(tmp_path)
    assert main(show("--envs", 4096, "--workers", 1024)) == 0
    out, err = capfd.readouterr()
    assert err == "" and os.listdir(tmp_path) == []
    processors, workers, server, warning = out.splitlines()
    assert processors.startswith(f"processors  {show_cpus(available_cpus())} (of ")
    assert workers.startswith("workers     1024, of 4 environments each: 2 of each group, ")
    assert server.startswith("server      not pinned; torch threads: ")
    assert warning.startswith("warning     workers=1024 share ")
    for words in ("--envs-per-worker 0", "--cpus 0-99999", "--cpus none", "--cpus ''", "--workers 3 --envs 8"):
        assert main(show(*words.replace("''", " ").split(" ", 3))) == 2, words


@pytest.mark.parametrize(("num_gpus", "usable"), [(0, "cpu"), (2, "cpu or cuda:0 or cuda:1")])
def test_a_gpu_that_is_not_there(num_gpus: int, usable: str, monkeypatch: Any) -> None:
    """Would catch a traceback of CUDA's instead of a line that names what there is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(UsageError, match=f"device='cuda:7', but there is no such GPU here; use --device {usable}$"):
        resolve({**TINY, "device": "cuda:7"})


@no_gpu
def test_cuda_without_a_gpu() -> None:
    """The same without a number, on a machine that has none."""
    with pytest.raises(UsageError, match="device='cuda', but there is no such GPU here; use --device cpu"):
        resolve({**TINY, "device": "cuda"})


# ---- real processes ----


@needs_pinning
@needs_two
def test_a_restricted_process_keeps_to_its_processors() -> None:
    """Would catch what `taskset` and batch systems say being ignored, or overstepped by --cpus."""
    last = ONLINE[-1]

    def run(*words: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "accel_rl", *show(*words)],
            preexec_fn=lambda: os.sched_setaffinity(0, {last}),
            capture_output=True,
            text=True,
        )

    result = run()
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"processors  {last} (of ")
    assert f"workers     1, of 16 environments: 8 of each group, on {last}\n" in result.stdout
    result = run("--cpus", ONLINE[0])
    assert result.returncode == 2
    assert f"of these, {ONLINE[0]} do not; {last} are allowed to this process" in result.stderr


@needs_pinning
@needs_two
def test_the_server_is_pinned_for_the_run_only() -> None:
    """Would catch a Python session that keeps a single core after its first run, or threads that were forgotten."""
    everywhere = os.sched_getaffinity(0)
    torch.set_num_threads(2)
    torch.rand(300, 300) @ torch.rand(300, 300)
    with placement.pinned((ONLINE[-1],)):
        assert all(os.sched_getaffinity(int(thread)) == {ONLINE[-1]} for thread in os.listdir("/proc/self/task"))
    assert all(os.sched_getaffinity(int(thread)) == everywhere for thread in os.listdir("/proc/self/task"))
    with placement.pinned(None):
        assert os.sched_getaffinity(0) == everywhere
