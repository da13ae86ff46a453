"""The report of `accel-rl doctor` on fake machines and packages, and its exit status."""

import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_rl import cli
from accel_rl.doctor import gpus, machine, self_test, software, survey
from accel_rl.doctor.finding import Finding, Problem, examine
from accel_rl.doctor.self_test import Trial
from accel_rl.emulator import machine_code
from accel_rl.hardware import gpu_driver, host_memory, instructions, shared_memory, topology
from tests.helpers.machines import write
from tests.helpers.processes import Command, run

ROOT = Path(__file__).parents[2]
GB, MB = 1 << 30, 1 << 20


def the_problem(finding: Finding) -> Problem:
    (problem,) = finding.problems
    return problem


# ---- the machine ----


def test_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota below the logical CPUs is a problem, and so is a single logical CPU."""
    monkeypatch.setattr(topology, "available_cpus", lambda: [0, 1, 2, 3])
    root = write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"})
    problem = the_problem(machine.logical_cpus(root))
    assert "of 1.5 CPUs leaves 2.5 of 4 " in problem.what and "--cpus=4" in problem.command
    write(tmp_path, {"sys/fs/cgroup/cpu.max": "400000 100000"})
    assert not machine.logical_cpus(root).problems
    monkeypatch.setattr(topology, "available_cpus", lambda: [3])
    problem = the_problem(machine.logical_cpus(root))
    assert "one logical CPU" in problem.what and "--cpus=2" in problem.command


def test_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that other programs keep busy is a problem, as its speeds are too low."""
    monkeypatch.setattr(machine, "available_cpus", lambda: [0, 1, 2, 3])
    for average, num_problems in ((1.9, 0), (2.1, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda average=average: (average, 0.0, 0.0))
        assert len(machine.load().problems) == num_problems


def test_memory_of_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The free memory is the control group's if it has a limit; the remedy is an option of the container."""
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    write(tmp_path, {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB"})
    finding = machine.memory()
    assert not finding.problems and finding.text.startswith("32.0 GB of 64.0 GB free, no limit")
    group = {"memory.max": str(2 * GB), "memory.current": str(GB + GB // 2)}
    write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    finding = machine.memory()
    assert finding.text.startswith("512 MB of 2.0 GB free; limited by the control group: the machine has 64.0 GB")
    assert the_problem(finding).level == "error" and the_problem(finding).command.startswith("docker run --memory")


def test_limited_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the address space is named with `ulimit -v`, as CUDA does not start under it."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4 * GB, 4 * GB))
    assert "ulimit -v unlimited" in [problem.command for problem in machine.memory().problems]


def test_small_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enlarging Docker's 64 MB of /dev/shm is optional, as runs do not use them."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(64 * MB))
    problem = the_problem(machine.shared_memory())
    assert problem.level == "optional" and problem.command.startswith("docker run --shm-size=")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(GB))
    assert not machine.shared_memory().problems


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox without memfd_create is an error; the serial sampler is a way out."""

    def refuse(size: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(shared_memory, "_anonymous_file", refuse)
    problem = the_problem(machine.shared_memory())
    assert problem.level == "error" and "not permitted" in problem.what and "--sampler serial" in problem.command


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only folder is named before the first run fails in it."""
    assert "can be written" in machine.folders(tmp_path).text
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert the_problem(machine.folders(tmp_path)).command == "accel-rl train --out FOLDER"


# ---- packages ----

MODULES = {
    "fine": """print('["fine", "looks like an answer"]')""",
    "broken": "raise OSError('libX.so: cannot open\\nmore')",
    "leaves": "raise SystemExit(3)",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
    "hangs": "import time; time.sleep(600)",
}


@pytest.fixture
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{name}.py": text for name, text in MODULES.items()})
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_modules")
def test_packages_that_cannot_be_imported() -> None:
    """Broken packages need reinstalling, whatever they raise or print, and missing ones installing, except llvmlite."""
    names = ("fine", "broken", "leaves", "absent")
    finding = software.packages({f"dist-{name}": name for name in names}, ["also_absent"])
    broken, leaves, absent = finding.problems
    assert finding.text.endswith("cannot be imported: broken, leaves, absent") and not finding.is_fatal
    assert broken.what == "broken cannot be imported: OSError: libX.so: cannot open" and broken.level == "error"
    assert leaves.command == "pip install --force-reinstall dist-leaves" and absent.command == "pip install dist-absent"


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("crashes", "loading crashes kills Python with SIGILL"),
        pytest.param("hangs", "loading hangs hangs for 5 s", marks=pytest.mark.slow),
    ],
)
def test_a_package_that_crashes_or_hangs_ends_the_report(
    module: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The report names the package and ends; nothing else loads it."""
    monkeypatch.setattr(software, "TIMEOUT_S", 5.0)
    probes = {"packages": lambda: software.packages({"fine": "fine", "dist": module}, []), "after": pytest.fail}
    monkeypatch.setattr(survey, "PROBES", probes)
    monkeypatch.setattr(self_test, "train", pytest.fail)
    assert cli.main(["doctor", "--json"]) == 1
    said = capsys.readouterr()
    assert said.err == f"accel-rl: nothing can be trained: {what}\n"
    report = json.loads(said.out)
    problem = {"level": "error", "what": what, "command": "pip install --force-reinstall dist"}
    assert report == {"can_train": False, "machine": {"packages": what}, "to_fix": [problem]}


def test_without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started (`ulimit -u`), the report goes on, and the self-test fails."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    finding = software.packages()
    assert "not loaded: BlockingIOError" in finding.text and not finding.problems
    assert f"numpy {importlib.metadata.version('numpy')}" in finding.text
    assert "temporarily unavailable" in self_test.train("pong").failure


def test_a_probe_that_fails_is_one_line() -> None:
    """A package that ends Python while it is imported does not end the doctor."""

    def leave() -> Finding:
        raise SystemExit("no licence\nno more")

    assert examine(leave).text == "unknown: SystemExit: no licence"


def test_a_native_simulator_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the one that the simulator names."""

    what = "llvmlite cannot be imported (OSError: no libLLVM)"
    monkeypatch.setattr(
        "accel_rl.envs.games.emulator_choice.find_problem",
        lambda: f"{what}: pip install --force-reinstall llvmlite numba",
    )
    finding = software.native_simulator()
    assert the_problem(finding).command == "pip install --force-reinstall llvmlite numba"
    assert finding.text == f"none: {what}" and the_problem(finding).level == "warning"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is named, as it costs a compilation at each start."""

    monkeypatch.setattr("accel_rl.envs.games.emulator_choice.find_problem", lambda: None)
    monkeypatch.setattr(machine_code, "cache_folder", lambda: tmp_path / "a" / "b")
    assert not software.native_simulator().problems
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    problem = the_problem(software.native_simulator())
    assert str(tmp_path / "a" / "b") in problem.what and problem.command == "export XDG_CACHE_HOME=FOLDER"


# ---- GPUs ----


def test_a_gpu_that_pytorch_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is named if PyTorch is a CPU build or the GPU is hidden; a network card is not a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    network = {"vendor": "0x10de", "class": "0x020000"}
    write(tmp_path, {f"sys/bus/pci/devices/0000:02:00.0/{name}": text for name, text in network.items()})
    assert not gpus.gpus(tmp_path).problems
    gpu = {"vendor": "0x10de", "class": "0x030200"}
    write(tmp_path, {f"sys/bus/pci/devices/0000:01:00.0/{name}": text for name, text in gpu.items()})
    assert "download.pytorch.org" in the_problem(gpus.gpus(tmp_path)).command
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert the_problem(gpus.gpus(tmp_path)).command == "unset CUDA_VISIBLE_DEVICES"


def test_driver(tmp_path: Path) -> None:
    """The driver's version is the kernel module's, not another number in the same line."""
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri Aug 16 21:39:15 UTC 2024"
    assert gpu_driver.find_driver(write(tmp_path, {"proc/driver/nvidia/version": line})) == "560.35.03"


@pytest.mark.gpu
def test_gpus_are_described() -> None:
    """A working GPU is described without a problem."""
    finding = gpus.gpus()
    assert finding.text.startswith(f"{torch.cuda.device_count()}: {torch.cuda.get_device_name(0)}, ")
    assert not finding.problems


def test_bfloat16_that_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy names the variable that hides the instructions."""
    hidden = instructions.Instructions("AVX512", "", "DNNL_MAX_CPU_ISA=AVX2 hides this CPU's bfloat16 instructions")
    monkeypatch.setattr(gpus, "read_instructions", lambda: hidden)
    assert the_problem(gpus.bfloat16()).command == "unset DNNL_MAX_CPU_ISA"


# ---- the report ----


def broken() -> Finding:
    print("hello from a package")
    raise RuntimeError("no such thing\nand more")


PROBES = {
    "good part": lambda: Finding("fine"),
    "slow": lambda: Finding("slow", (Problem("optional", "is slow", "make fast", "the cause"),)),
    "broken": broken,
    "wrong": lambda: Finding("bad", (Problem("error", "is wrong, by the cause", "fix it"),)),
    "late": lambda: Finding("bad", (Problem("warning", "is late", "hurry up"),)),
}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> dict[str, Trial]:
    """Replaces the probes and the self-test; returns the self-test's results, which a test may change."""
    found = {env: Trial(env, 200.0, settings=(("run", f"a2c on {env}"),)) for env in self_test.STEPS}
    monkeypatch.setattr(self_test, "train", found.__getitem__)
    monkeypatch.setattr(survey, "PROBES", PROBES)
    return found


def test_the_report(trials: dict[str, Trial], capsys: Any) -> None:
    """Problems are ordered by severity, each cause once, and stdout has only the report."""
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "machine",
        "  good part         fine",
        "  slow              slow",
        "  broken            unknown: RuntimeError: no such thing",
        "  wrong             bad",
        "  late              bad",
        "",
        "self-test",
        "  train CartPole-v1 200 steps/s",
        "  train pong        200 steps/s",
        "",
        "would use",
        "  run               a2c on pong",
        "",
        "to fix",
        "  warning           is late",
        "                    hurry up",
        "  optional          is slow",
        "                    make fast",
    ]
    assert said.err == "hello from a package\n"


def test_the_report_as_json(trials: dict[str, Trial], capsys: Any) -> None:
    """The JSON object has the report's lines, the speeds as numbers, and the problems to fix."""
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["can_train"] and report["machine"]["good_part"] == "fine"
    assert report["self_test"]["train_pong"] == "200 steps/s" and report["would_use"] == {"run": "a2c on pong"}
    assert report["steps_per_second"] == {"cartpole_v1": 200, "pong": 200}
    assert report["to_fix"][0] == {"level": "warning", "what": "is late", "command": "hurry up"}


def test_a_self_test_that_fails(trials: dict[str, Trial], capsys: Any) -> None:
    """A failed self-test exits with status 1, and a failure of both training runs is listed once."""
    for env in trials:
        trials[env] = Trial(env, failure="its process was killed by SIGILL: it printed nothing")
    assert cli.main(["doctor", "--json"]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == f"accel-rl: the self-test failed: {trials['pong'].failure}"
    report = json.loads(said.out)
    assert not report["can_train"] and [p["level"] for p in report["to_fix"]] == ["error", "warning", "optional"]
    assert "accel-rl train --env CartPole-v1" in report["to_fix"][0]["command"]


# ---- the whole command ----


@pytest.mark.multiprocess
def test_a_training_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is the run's own error, or the time after which a process hung."""
    monkeypatch.setattr(self_test, "FLAGS", ["--no-such-flag"])
    failure = self_test.train("pong").failure
    assert failure.startswith("its process exited with status 2: unknown argument '--no-such-flag'")
    monkeypatch.setattr(self_test, "TIMEOUT_S", 0.01)
    assert self_test.train("pong").failure.startswith("its process hung for 0.01 s")


def test_what_a_training_has_said_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed is that of the last row, and each line of the log that describes the run is kept."""

    end = ""

    def write_run(words: list[str], said: int) -> str:
        out = Path(next(word for word in words if word.startswith("--out=")).removeprefix("--out="))
        write(out, {"progress.csv": "time/total_timesteps,time/fps\n2000,10.0\n4000,250.5\n"})
        os.write(said, b"a2c on pong\nworkers     2, on 0-1\n--precision bf16 would be faster\n   2,000 steps\n")
        os.write(said, b"ImportError: no such library\nfor this processor\n")
        return end

    monkeypatch.setattr(self_test, "_run", write_run)
    advice = ("advice", "--precision bf16 would be faster")
    assert self_test.train("pong").settings == (("run", "a2c on pong"), ("workers", "2, on 0-1"), advice)
    assert self_test.train("pong").rate == 250.5
    end = "its process exited with status 1"
    assert self_test.train("pong").failure == f"{end}: ImportError: no such library"


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_whole_command(tmp_path: Path) -> None:
    """Every probe answers, both training runs report a speed, and no file is left behind."""
    result = run("doctor", "--json", cwd=tmp_path, within_s=240)
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert not any(text.startswith("unknown") for text in report["machine"].values())
    assert f"torch {torch.__version__}" in report["machine"]["packages"]
    assert report["would_use"].keys() >= {"run", "simulator", "cpus", "workers", "server", "network"}
    assert min(report["steps_per_second"].values()) > 0
    assert all(problem["command"] and problem["level"] != "error" for problem in report["to_fix"])
    assert not list(tmp_path.iterdir())


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "fixed_by", "status"),
    [
        ("llvmlite", "pip install --force-reinstall llvmlite numba", 0),
        ("numpy", "pip install --force-reinstall numpy", 1),
    ],
)
def test_a_broken_package(package: str, fixed_by: str, status: int, tmp_path: Path) -> None:
    """A broken package is named once, with its remedy but without its consequences."""
    write(tmp_path, {f"{package}/__init__.py": "raise ImportError('no such library\\nfor this processor')"})
    paths = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, sys.path)])
    command = Command("doctor", "--json", cwd=tmp_path, environment={"PYTHONPATH": paths})
    result = command.finish(within_s=240)
    assert result.status == status, result.err
    report = json.loads(result.out)
    assert "Traceback" not in result.out + result.err and report["can_train"] == (status == 0)
    assert [p["command"] for p in report["to_fix"] if "no such library" in p["what"]] == [fixed_by]
