"""What a GPU session finds out before it measures: what is installed, what the machine is, whether the GPU is right."""

import configparser
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from accel_rl.envs import EnvConfig
from accel_rl.envs.probe import probe_spec
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.devices import pin, unpin
from accel_rl.hardware.shared_memory import SharedArrays
from gpu.rows import Row, Rows

ROOT = Path(__file__).parents[2]
COMMAND_LIMIT_S = 15.0  # nvidia-smi hangs on some broken drivers
ONE_FAMILY = """
from accel_rl.doctor.gpu_check import FAMILIES, check_gpu
check_gpu({"n-step Q": FAMILIES["n-step Q"]}, {})
"""
FACTS = (
    "nvidia-smi",
    "nvidia-smi topo -m",
    "lscpu",
    "free -g",
    "df -h /dev/shm /tmp",
    "cat /sys/devices/system/node/online",
    "grep Cpus_allowed_list /proc/self/status",
)


def install(rows: Rows) -> None:
    """Names missing packages, compiles the emulator, and asks the doctor."""
    rows.add("packages", find_packages)
    rows.add("doctor", ask_doctor, rows.is_dry)


def find_packages() -> Row:
    """Returns versions of the packages that are needed or useful. Raises RuntimeError if a needed one is missing."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    needed = [re.split(r"[<>=]", line)[0] for line in config["options"]["install_requires"].split()]
    found = {name: find_version(name) for name in [*needed, "numba", "llvmlite", "triton", "pytest", "pytest-xdist"]}
    if missing := [name for name in [*needed, "pytest"] if not found[name]]:
        raise RuntimeError(f"not installed: {', '.join(missing)}; pip install {' '.join(missing)}")
    return {name: version or "not installed" for name, version in found.items()}


def find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def ask_doctor(is_dry: bool) -> Row:
    """Returns what the doctor's self-test and plan say, and what to mend. A dry run only compiles the emulator."""
    if is_dry:
        return {"pong": str(probe_spec(EnvConfig("pong")).observation_shape)}
    done = subprocess.run([sys.executable, "-m", "accel_rl", "doctor", "--json"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    texts = {name: each["text"] for name, each in {**report["self_test"], **report["would_use"]}.items()}
    mend = "; ".join(each["what"] for each in report["to_mend"] if each["level"] != "optional")
    return {**texts, "to_mend": mend or "nothing"}


def facts(rows: Rows) -> None:
    """Describes the machine. What a command or the driver refuses is said in its row, and fails nothing."""
    rows.add("machine", lambda: {"text": format_machine(describe_machine())})
    rows.add("pinned memory", try_to_pin)
    for command in FACTS:
        rows.add(command, lambda command=command: {"text": say(command)})


def say(command: str, limit_s: float = COMMAND_LIMIT_S) -> str:
    """Returns what a command prints, or why it prints nothing."""
    words = command.split()
    if not shutil.which(words[0]):
        return f"there is no {words[0]} here"
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"{command} has not answered within {limit_s:g} s"
    return (done.stdout + done.stderr).strip()[-4000:]


def try_to_pin() -> Row:
    """Tells whether the driver pins shared memory. Where it refuses, transfers are slower, but all else works."""
    memory = SharedArrays({"values": ((1 << 20,), "uint8")})
    address = pin(memory)
    if address is None:
        return {"text": "refused by the driver: transfers are slower"}
    unpin(address)
    return {"text": "shared memory can be pinned"}


def correctness(rows: Rows) -> None:
    """Compares the GPU with the CPU: the doctor beside the tests, since neither is timed."""
    doctor = [sys.executable, "-m", "accel_rl", "doctor", "--gpu"]
    if rows.is_dry:
        doctor = [sys.executable, "-c", ONE_FAMILY]
    with (rows.out / "doctor_gpu.log").open("w+") as said:
        process = subprocess.Popen(doctor, stdout=said, stderr=subprocess.STDOUT, text=True)
        try:
            run_tests(rows, test_command(rows.is_dry))
            process.wait()
        finally:
            process.kill()
        said.seek(0)
        lines = said.read().splitlines()
    failed = [line.split("  ")[0] for line in lines if "  FAILED" in line]
    row: Row = {
        "name": "accel-rl doctor --gpu",
        "verdict": lines[-1] if lines else "nothing was printed",
        "failed": failed,
    }
    if process.returncode:
        row["error"] = row["verdict"]
    rows.put(row | {"table": lines})


def test_command(is_dry: bool) -> list[str]:
    """Returns the command that runs the tests of the GPU code, several at a time where pytest can."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-vv", "-rf", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors"]
    if is_dry:
        return [*command, "--gpu", "fake", "tests/hardware/test_capture.py"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(min(8, os.cpu_count() or 1)), "--dist", "load"]
    if importlib.util.find_spec("pytest_timeout"):
        command += ["--timeout", "60"]
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    return [*command, "--gpu", "real", *files]


def run_tests(rows: Rows, command: list[str]) -> None:
    """Runs pytest, and hands on how many tests have passed so far, and which have failed, every few seconds."""
    env = {name: value for name, value in os.environ.items() if name != "ACCEL_RL_FAKE_GPUS"}  # tests make their own
    counts, failed, shown = {"passed": 0, "failed": 0, "skipped": 0, "error": 0}, list[str](), 0.0

    def row(**more: Any) -> Row:
        verdict = ", ".join(f"{number} {how}" for how, number in counts.items() if number)
        return {"name": "tests", "verdict": verdict or "no test has ended", "failed": failed, **more}

    with (rows.out / "tests.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        assert process.stdout
        for line in process.stdout:
            log.write(line)
            log.flush()
            if how := re.search(r"\b(PASSED|FAILED|SKIPPED|ERROR)\b", line):
                if not (name := re.search(r"(tests/\S+?\.py\S*)", line)) or name[1] in failed:
                    continue  # the summary at the end names them again
                counts[how[1].lower()] += 1
                failed += [name[1]] if how[1] in ("FAILED", "ERROR") else []
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                rows.put(row(complete=False))
        status = process.wait()
    rows.put(row() if status == 0 else row(error=f"{row()['verdict']}: {', '.join(failed) or f'status {status}'}"))


PARTS = {"install": install, "facts": facts, "correctness": correctness}
