"""The report of `accel-rl doctor`: faked machines, what it says of them, and how it ends."""

import configparser
import importlib.metadata
import json
import os
import resource
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_rl import cli
from accel_rl.doctor import gpus, machine, process, software, survey
from accel_rl.doctor.finding import Finding, Probe, Problem
from accel_rl.doctor.process import Result
from accel_rl.hardware import host_memory, shared_memory, topology
from tests.helpers.machines import write
from tests.helpers.processes import Command, run

ROOT = Path(__file__).parents[2]
GB, MB = 1 << 30, 1 << 20


def the_problem(finding: Finding) -> Problem:
    (problem,) = finding.problems
    return problem


def limit(monkeypatch: pytest.MonkeyPatch, **limits: tuple[int, int]) -> None:
    """Fakes limits of this process, by the ends of their names: soft, hard."""
    real = resource.getrlimit
    faked = {getattr(resource, f"RLIMIT_{name}"): pair for name, pair in limits.items()}
    monkeypatch.setattr(resource, "getrlimit", lambda which: faked.get(which) or real(which))


# ---- the machine ----


def test_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a quota that nobody is told of, one that is blamed although it is large enough, and a wrong count."""
    monkeypatch.setattr(topology, "available_cpus", lambda: [0, 1, 2, 3])
    siblings = {
        f"sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list": f"{c % 2},{c % 2 + 2}" for c in range(4)
    }
    root = write(tmp_path, siblings | {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"})
    finding = machine.logical_cpus(root)
    problem = the_problem(finding)
    assert problem.level == "warning" and "--cpus=4" in problem.command
    assert "of 1.5 CPUs leaves 2.5 of 4 " in problem.what
    expected = {"cores": 2, "logical_cpus": 4, "threads_per_core": 2, "numa_nodes": 1, "quota": 1.5, "online": 4}
    assert finding.data == expected
    write(tmp_path, {"sys/fs/cgroup/cpu.max": "400000 100000"})
    assert not machine.logical_cpus(root).problems
    monkeypatch.setattr(topology, "available_cpus", lambda: [3])
    assert "one logical CPU" in the_problem(machine.logical_cpus(root)).what


def test_memory_of_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch the machine's memory shown as that of a container, and a remedy for a machine instead of for it."""
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    write(tmp_path, {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB"})
    finding = machine.memory()
    assert not finding.problems and finding.text.startswith("32.0 of 64.0 GB free, no limit")
    group = {"memory.max": str(2 * GB), "memory.current": str(GB + GB // 2)}
    write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    finding = machine.memory()
    assert finding.data["limit_bytes"] == 2 * GB and finding.data["free_bytes"] == GB // 2
    assert the_problem(finding).level == "error" and the_problem(finding).command.startswith("docker run --memory")


def test_limited_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch `ulimit -v`, under which CUDA does not start, left unsaid."""
    limit(monkeypatch, AS=(4 * GB, 4 * GB))
    assert "ulimit -v unlimited" in [problem.command for problem in machine.memory().problems]


@pytest.mark.parametrize(("users", "level"), [([], "optional"), (["ViZDoom"], "warning")])
def test_small_dev_shm(users: list[str], level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch docker's 64 MB left unsaid, or blamed where nothing uses them."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(64 * MB, 0, 64 * MB))
    monkeypatch.setattr(machine, "_users_of_dev_shm", lambda: users)
    finding = machine.shared_memory()
    problem = the_problem(finding)
    assert problem.level == level and problem.command.startswith("docker run --shm-size=")
    assert finding.data == {"anonymous": True, "dev_shm_bytes": 64 * MB, "dev_shm_free_bytes": 64 * MB}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(GB, 0, GB))
    assert not machine.shared_memory().problems


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a sandbox without memfd_create in which all seems well."""

    def refuse(size: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(shared_memory, "_anonymous_file", refuse)
    problem = the_problem(machine.shared_memory())
    assert problem.level == "error" and "not permitted" in problem.what and "--sampler serial" in problem.command


@pytest.mark.parametrize(("hard", "command"), [(1 << 20, "ulimit -n "), (64, "docker run --ulimit nofile=")])
def test_few_open_files(hard: int, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a limit that is too low, and `ulimit` named where the hard limit forbids it."""
    limit(monkeypatch, NOFILE=(64, hard))
    finding = machine.open_files()
    assert the_problem(finding).command.startswith(command) and finding.data["limit"] == 64
    limit(monkeypatch, NOFILE=(1 << 20, 1 << 20))
    assert not machine.open_files().problems


def test_few_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch limits of the user or the control group that are not compared with what already runs."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine, "_num_own_threads", lambda: 990)
    limit(monkeypatch, NPROC=(1000, 1000))
    finding = machine.processes(tmp_path)
    assert finding.data["user_left"] == 10 and the_problem(finding).command.startswith("ulimit -u")
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # has no such limit
    assert not machine.processes(tmp_path).problems
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/pids.max": "40", "sys/fs/cgroup/pids.current": "33"})
    finding = machine.processes(tmp_path)
    assert finding.data["control_group_left"] == finding.data["left"] == 7
    assert "--pids-limit" in the_problem(finding).command
    write(tmp_path, {"sys/fs/cgroup/pids.max": "max"})
    assert machine.processes(tmp_path).data["left"] is None


def test_own_threads_are_counted() -> None:
    """Would catch a count of processes, of which each may have many threads."""
    assert machine._num_own_threads() >= len(os.listdir("/proc/self/task"))


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a read-only folder that shows only when the first run fails."""
    assert machine.folders(tmp_path).data["is_writable"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert the_problem(machine.folders(tmp_path)).command == "accel-rl train --out FOLDER"


# ---- packages ----


def test_packages_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a traceback, or one remedy for a package that is missing and for one that is broken."""
    write(tmp_path, {"broken_package.py": "raise ImportError('libGL.so.1: cannot open\\nsecond line')"})
    monkeypatch.syspath_prepend(tmp_path)
    finding = software.packages({"numpy": "numpy", "broken": "broken_package", "absent": "absent_package"})
    broken, absent = finding.problems
    assert broken.command == "pip install --force-reinstall broken" and absent.command == "pip install absent"
    assert broken.level == "error" and broken.what.endswith("ImportError: libGL.so.1: cannot open")
    assert "numpy 2" in finding.text and finding.data["broken"] is None


def test_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch versions compared as text, by which 1.9 is newer than 1.26."""
    versions = {"torch": "1.9.0+cpu", "numpy": "1.100.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    requires = ["torch>=1.26", "numpy>=1.26", "numba>=9; extra == 'native'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
    finding = software.packages({"torch": "torch", "numpy": "numpy"})
    assert the_problem(finding).command == "pip install --upgrade torch"


def test_extras_are_those_of_setup() -> None:
    """Would catch an extra that doctor does not know, or a package that it looks for under a wrong name."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    own = set(config["options.extras_require"]) - {
        "train",
        "dev",
        "docs",
    }  # which are made of others, or for the project itself
    assert set(software.EXTRAS) == own
    packages = {"pygame": "pygame-ce"}
    for extra, modules in software.EXTRAS.items():
        for module in modules:
            assert packages.get(module, module) in config["options.extras_require"][extra]


def test_missing_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an extra that counts as installed with one of its packages only."""
    monkeypatch.setattr(software, "EXTRAS", {"plot": ("json",), "export": ("json", "absent_1"), "bench": ("absent_2",)})
    finding = software.extras()
    assert finding.data == {"plot": True, "export": False, "bench": False}
    assert the_problem(finding).command == 'pip install "accel-rl[export,bench]"'


def test_a_native_simulator_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a doctor that breaks off, or a remedy other than the one that the simulator names."""
    from accel_rl.envs import choice

    what = "llvmlite cannot be imported (OSError: no libLLVM)"
    monkeypatch.setattr(choice, "find_problem", lambda: f"{what}: pip install --force-reinstall llvmlite numba")
    finding = software.native_simulator()
    assert the_problem(finding).command == "pip install --force-reinstall llvmlite numba"
    assert finding.text == f"none: {what}" and finding.data["is_ready"] is False


def test_a_replay_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a default that fails on this machine, found only when it is trained."""
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: 2 * GB)
    finding = software.replay()
    problem = the_problem(finding)
    assert not finding.data["fits"] and "replay_size=1000000 needs" in problem.what
    assert problem.command.startswith("accel-rl train --algo dqn --replay-size ")


# ---- GPUs ----


def test_a_gpu_that_pytorch_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an idle GPU under PyTorch's build for CPUs, or one that is hidden, left unsaid; and other hardware
    taken for a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    network = {"vendor": "0x10de", "class": "0x020000"}
    write(tmp_path, {f"sys/bus/pci/devices/0000:02:00.0/{name}": text for name, text in network.items()})
    assert not gpus.gpus(tmp_path).problems
    gpu = {"vendor": "0x10de", "class": "0x030200"}
    write(tmp_path, {f"sys/bus/pci/devices/0000:01:00.0/{name}": text for name, text in gpu.items()})
    finding = gpus.gpus(tmp_path)
    assert finding.data == {"gpus": [], "hidden": True} and "download.pytorch.org" in the_problem(finding).command
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert the_problem(gpus.gpus(tmp_path)).command == "unset CUDA_VISIBLE_DEVICES"


def test_driver(tmp_path: Path) -> None:
    """Would catch another number of that line taken for the version."""
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri Aug 16 21:39:15 UTC 2024"
    assert gpus.find_driver(write(tmp_path, {"proc/driver/nvidia/version": line})) == "560.35.03"


@pytest.mark.gpu
def test_gpus_are_described() -> None:
    """Would catch a property that PyTorch does not have, on machines with a GPU only."""
    finding = gpus.gpus()
    assert len(finding.data["gpus"]) == torch.cuda.device_count() and not finding.problems
    assert finding.data["gpus"][0]["name"] == torch.cuda.get_device_name(0) in finding.text
    assert gpus.bfloat16().data["gpu"] in (True, False)


def test_bfloat16_that_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a variable that nobody remembers to have set, and a remedy that names another one."""
    from accel_rl.hardware.instructions import Instructions

    hidden = Instructions("AVX512", "", "DNNL_MAX_CPU_ISA=AVX2 hides this CPU's bfloat16 instructions (AMX)")
    monkeypatch.setattr(gpus, "read_instructions", lambda: hidden)
    assert the_problem(gpus.bfloat16()).command == "unset DNNL_MAX_CPU_ISA"


# ---- the report ----


def broken() -> Finding:
    print("hello from a package")
    raise RuntimeError("no such thing\nand more")


PROBES: dict[str, Probe] = {
    "good": lambda: Finding("fine", {"number": 3}),
    "slow": lambda: Finding("slow", problems=(Problem("optional", "is slow", "make fast", "cause"),)),
    "Atari": lambda: Finding("104 games", {"num_games": 104}),
    "broken part": broken,
    "wrong": lambda: Finding("bad", problems=(Problem("error", "is wrong", "mend it", "the cause itself"),)),
    "late": lambda: Finding("bad", problems=(Problem("warning", "is late", "hurry up"),)),
}
PLAN = {"device": {"text": "the CPU", "device": "cpu"}}
SPEEDS = {"steps": 100, "seconds": 0.5, "steps_per_second": 200.0, "act_steps_per_second": 500.0}
SPEEDS |= {"learn_steps_per_second": 900.0}
TRAINING = {"algo": "a2c", "env": "pong", "device": "cpu", "simulator": "ale", "envs": 16, "workers": 2, **SPEEDS}
Outcomes = dict[str, Result]


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """The results of the self-test, which does not run."""
    found = {
        "plan": Result("plan", PLAN),
        "train CartPole-v1": Result("train CartPole-v1", TRAINING | {"simulator": None}),
        "train pong": Result("train pong", TRAINING),
    }

    def run_in_processes(names: tuple[str, ...]) -> Iterator[Result]:
        return (found[name] for name in names)

    monkeypatch.setattr(process, "run_in_processes", run_in_processes)
    monkeypatch.setattr(survey, "PROBES", PROBES)
    return found


def test_the_report(outcomes: Outcomes, capsys: Any) -> None:
    """Would catch a line that is lost, problems in another order than by weight, or one cause named twice."""
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr()
    lines = [line.rstrip() for line in said.out.splitlines()]
    assert lines[0] == "machine" and "  good              fine" in lines
    assert "  broken part       unknown: RuntimeError: no such thing" in lines
    speed = "200 steps/s (ale): a2c with 16 environments in 2 workers on cpu, 100 steps in 0.5 s"
    assert any(line.startswith(f"  train pong        {speed}") for line in lines)
    assert lines[lines.index("would use") + 1] == "  device            the CPU"
    assert lines[lines.index("to mend") + 1 :] == [
        "  warning           is late",
        "                    hurry up",
        "  optional          is slow",
        "                    make fast",
    ]
    assert said.err == "hello from a package\n"


def test_the_report_as_json(outcomes: Outcomes, capsys: Any) -> None:
    """Would catch anything else on stdout, and data that the text does not show."""
    assert cli.main(["doctor", "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["can_train"] and report["machine"]["good"] == {"text": "fine", "number": 3}
    assert report["machine"]["broken_part"]["error"] == "RuntimeError: no such thing"
    assert report["self_test"]["train_pong"]["steps_per_second"] == 200
    assert report["would_use"] == PLAN
    assert report["to_mend"][0] == {"level": "warning", "what": "is late", "command": "hurry up"}
    assert said.err == "hello from a package\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_self_test_that_fails(outcomes: Outcomes, flags: list[str], capsys: Any) -> None:
    """Would catch status 0, or no report, where nothing can be trained; and an error of many lines."""
    failure = "its process ended with status -4, or hung for 180 s; the last it said:\nsome line\nIllegal instruction"
    outcomes["train pong"] = Result("train pong", {}, failure)
    assert cli.main(["doctor", *flags]) == 1
    said = capsys.readouterr()
    assert "status -4" in said.out and "accel-rl train --env pong" in said.out
    error = said.err.splitlines()[-1]
    assert error.startswith("accel-rl: the self-test failed: its process ended") and "Illegal instruction" in error
    if flags:
        report = json.loads(said.out)
        assert not report["can_train"] and report["to_mend"][0]["level"] == "error"


def test_a_self_test_that_cannot_be_started(outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Would catch a traceback where no process can be started, and one problem for each of its parts."""

    def refuse(*_: Any) -> Iterator[Result]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process, "run_in_processes", refuse)
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr()
    assert said.err.count("Too many open files") == 1 and "would use" not in said.out
    assert said.out.partition("to mend")[2].count("Too many open files") == 1


# ---- the self-test ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "failure"),
    [({"learning_rate": 1e-80}, "nothing was learned"), ({"value_weight": 3e38}, "not finite"), ({}, "")],
)
def test_a_training_that_fails(settings: dict[str, Any], failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a self-test that only measures speed: parameters that stay as they are, or become NaN, pass."""
    from accel_rl.doctor import trials
    from accel_rl.training.resolve import resolve as real

    common = {"sampler": "serial", "simulator": "ale", "envs": 2, "device": "cpu"}
    monkeypatch.setattr(trials, "resolve", lambda given: real({**given, **common, **settings}))
    monkeypatch.setattr(trials, "TRIALS", {"train pong": lambda: trials.train("pong", 0.1)})
    result = trials.run("train pong")
    assert failure in result.failure and bool(result.failure) == bool(failure), result.failure
    assert failure or result.data["steps_per_second"] > 0


# ---- the whole command ----


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    """Would catch figures that contradict each other, facts that are not this machine's, and a self-test that does not
    train."""
    result = run("doctor", "--json", cwd=tmp_path, within_s=240)
    assert result.status == 0, result.err
    report = json.loads(result.out)
    found, packages = report["machine"], report["machine"]["packages"]
    assert not any("error" in part for part in found.values())  # every probe has answered
    assert all(problem["command"] for problem in report["to_mend"])
    assert torch.__version__.startswith(packages["torch"]) and packages["text"].startswith("accel_rl ")
    assert found["logical_cpus"]["logical_cpus"] == len(os.sched_getaffinity(0))
    assert found["memory"]["free_bytes"] <= found["memory"]["total_bytes"]
    assert set(report["self_test"]) == {"train_cartpole_v1", "train_pong"}
    for test in report["self_test"].values():
        assert test["steps_per_second"] == pytest.approx(test["steps"] / test["seconds"])
        assert test["steps"] > 0 and (test["simulator"] or test["steps"] % (5 * test["envs"]) == 0)
        # Acting and learning are parts of training, each of which takes less time than the whole.
        assert min(test["act_steps_per_second"], test["learn_steps_per_second"]) > test["steps_per_second"]
        assert test["workers"] == report["would_use"]["workers"]["workers"]
    assert report["would_use"]["device"]["device"] == report["self_test"]["train_pong"]["device"]
    assert report["would_use"]["simulator"]["simulator"] == report["self_test"]["train_pong"]["simulator"]
    assert not [problem for problem in report["to_mend"] if problem["level"] == "error"]
    assert not list(tmp_path.iterdir())


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "mended_by", "status"),
    [
        ("llvmlite", "pip install --force-reinstall llvmlite numba", 0),
        ("torch", "pip install --force-reinstall torch", 1),
        ("numpy", "pip install --force-reinstall numpy", 1),
        ("yaml", "pip install --force-reinstall pyyaml", 1),
    ],
)
def test_a_broken_package(package: str, mended_by: str, status: int, tmp_path: Path) -> None:
    """Would catch a traceback, a doctor that breaks off, and the consequences of one fault named beside it."""
    write(tmp_path, {f"{package}/__init__.py": "raise ImportError('no such library\\nfor this processor')"})
    paths = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, sys.path)])
    command = Command("doctor", "--json", cwd=tmp_path, environment={"PYTHONPATH": paths})
    result = command.finish(within_s=240)
    assert result.status == status, result.err
    report = json.loads(result.out)
    assert "Traceback" not in result.out + result.err and report["can_train"] == (status == 0)
    assert [p["command"] for p in report["to_mend"] if "no such library" in p["what"]] == [mended_by]
