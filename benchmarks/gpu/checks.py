"""Checks the installed packages and the machine, and compares the GPU's results with the CPU's."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from accel_rl.envs import EnvConfig
from accel_rl.envs.probe import probe_spec
from accel_rl.hardware.description import describe_machine, format_machine, package_version
from accel_rl.hardware.devices import pin, unpin
from accel_rl.hardware.shared_memory import SharedArrays
from gpu.outcomes_plugin import OUTCOMES
from gpu.rows import Row, Rows

ROOT = Path(__file__).parents[2]
COMMAND_LIMIT_S = 15.0  # nvidia-smi hangs on some broken drivers
REPORT_S = 3.0  # between two reports of the tests' progress
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
    """Names optional packages, compiles the emulator, and runs the doctor, which names missing packages."""
    rows.add("packages", find_packages)
    rows.add("doctor", ask_doctor, rows.is_dry)


def find_packages() -> Row:
    """Returns the versions of packages that accel_rl can do without. Raises RuntimeError without pytest, which a later
    part needs."""
    found = {name: package_version(name) for name in ("numba", "llvmlite", "triton", "pytest", "pytest-xdist")}
    if not found["pytest"]:
        raise RuntimeError("pytest is not installed")
    return {name: version or "not installed" for name, version in found.items()}


def ask_doctor(is_dry: bool) -> Row:
    """Returns the doctor's self-test, plan and problems. A dry run only compiles the emulator."""
    if is_dry:
        return {"pong": str(probe_spec(EnvConfig("pong")).observation_shape)}
    done = subprocess.run([sys.executable, "-m", "accel_rl", "doctor", "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"accel-rl doctor has ended with status {done.returncode}: {done.stdout[-200:]}")
    return shorten(json.loads(done.stdout))


def shorten(report: Row) -> Row:
    """Returns the self-test, the plan and the problems of the doctor's report."""
    problems = "; ".join(each["what"] for each in report["to_fix"] if each["level"] != "optional")
    return {**report["self_test"], **report["would_use"], "to_fix": problems or "nothing"}


def facts(rows: Rows) -> None:
    """Describes the machine. A row says what a command or the driver refuses; this is not a failure."""
    rows.add("machine", lambda: {"text": format_machine(describe_machine())})
    rows.add("pinned memory", try_to_pin)
    for command in FACTS:
        rows.add(command, lambda command=command: {"text": say(command)})


def say(command: str, limit_s: float = COMMAND_LIMIT_S) -> str:
    """Returns a command's output, or the reason why there is none."""
    words = command.split()
    if not shutil.which(words[0]):
        return f"there is no {words[0]} here"
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"{command} has not answered within {limit_s:g} s"
    return (done.stdout + done.stderr).strip()[-4000:]


def try_to_pin() -> Row:
    """Tells whether the driver pins shared memory. If it refuses, transfers are slower, but everything works."""
    memory = SharedArrays({"values": ((1 << 20,), "uint8")})
    address = pin(memory)
    if address is None:
        return {"text": "refused by the driver: transfers are slower"}
    unpin(address)
    return {"text": "shared memory can be pinned"}


def correctness(rows: Rows) -> None:
    """Compares the GPU with the CPU: runs the doctor and the tests at the same time, since neither is timed."""
    doctor = threading.Thread(target=lambda: rows.add("accel-rl doctor --gpu", run_doctor, rows))
    doctor.start()
    rows.add("tests", run_tests, rows, test_command(rows.is_dry))
    doctor.join()


def run_doctor(rows: Rows) -> Row:
    """Returns the doctor's verdict and table, and passes on each line. Raises RuntimeError unless all is verified."""
    command = [sys.executable, "-m", "accel_rl", "doctor", "--gpu"]
    if rows.is_dry:
        command = [sys.executable, "-c", ONE_FAMILY]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip())
            rows.put({"name": "accel-rl doctor --gpu", "verdict": lines[-1], "table": lines, "complete": False})
    if process.returncode:
        raise RuntimeError(lines[-1] if lines else f"it has ended with status {process.returncode}")
    return {"verdict": lines[-1], "table": lines[:-1]}


def test_command(is_dry: bool) -> list[str]:
    """Returns the command that runs the tests of the GPU code, several at a time if pytest can."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-p", "gpu.outcomes_plugin"]
    command += ["--continue-on-collection-errors"]
    if is_dry:
        return [*command, "--gpu", "fake", "tests/hardware/test_capture.py"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(min(8, os.cpu_count() or 1)), "--dist", "load"]
    if importlib.util.find_spec("pytest_timeout"):
        command += ["--timeout", "60", "--timeout-method", "thread"]  # a CUDA call cannot be interrupted
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    return [*command, "--gpu", "real", *files]


def run_tests(rows: Rows, command: Sequence[str]) -> Row:
    """Runs pytest; reports every few seconds how many tests have passed, and which have failed with which error.

    Raises RuntimeError if some have failed, or if none has passed. The output goes to tests.log."""
    env = {name: value for name, value in os.environ.items() if name != "ACCEL_RL_FAKE_GPUS"}  # tests make their own
    with tempfile.NamedTemporaryFile("r") as file, (rows.out / "tests.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=env | {OUTCOMES: file.name}, cwd=ROOT
        )
        events, unread, status = list[Row](), "", None
        try:
            while status is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(REPORT_S)
                *lines, unread = (unread + file.read()).split("\n")
                events += map(json.loads, lines)
                rows.put({"name": "tests", **sum_up(events), "complete": False})
        finally:
            process.kill()
    found = sum_up(events)
    if status or not any(each["outcome"] == "passed" for each in events):
        raise RuntimeError(f"{found['verdict']}: {', '.join(found['failed']) or f'status {status}, tests.log'}")
    return found


def sum_up(events: Sequence[Row]) -> Row:
    """Returns the numbers of tests by outcome, the errors of failed tests, and the running tests."""
    ended = {each["test"]: each for each in events if each["outcome"] != "begun"}
    counts = Counter(each["outcome"] for each in ended.values())
    verdict = ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "no test has ended"
    wrong = {name: each["text"][-3000:] for name, each in ended.items() if each["text"]}
    running = [each["test"] for each in events if each["test"] not in ended]
    return {"verdict": verdict, "failed": [*wrong], "failures": wrong, "running": running}


PARTS = {"install": install, "facts": facts, "correctness": correctness}
