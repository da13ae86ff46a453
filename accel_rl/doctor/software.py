"""Probes packages and the native simulator of Atari games."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping

from accel_rl.doctor.finding import Finding, Problem
from accel_rl.errors import describe_error
from accel_rl.hardware.description import package_version
from accel_rl.processes.spawning import child_environment
from accel_rl.version import __version__

# Modules by distribution.
PACKAGES = {"numpy": "numpy", "torch": "torch", "gymnasium": "gymnasium", "ale-py": "ale_py"}  # NumPy before its users
PACKAGES |= {"cloudpickle": "cloudpickle", "opencv-python-headless": "cv2", "psutil": "psutil", "pyyaml": "yaml"}
PACKAGES |= {"rich": "rich", "safetensors": "safetensors"}
CUDA, LLVM = "torch.cuda", "llvmlite.binding"  # CUDA's driver may hang; LLVM may crash
TIMEOUT_S = 120.0  # to load all modules

# Writes a line of JSON before it loads a module, and another one if the module raises.
SCRIPT = f"""
import importlib, json, os, sys
out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
for name in sys.argv[1:]:
    print(json.dumps([name, ""]), file=out)
    try:
        module = importlib.import_module(name)
        if name == "{CUDA}":
            module.is_available()
    except BaseException as error:
        said = "".join(str(error).splitlines()[:1])
        print(json.dumps([name, f"{{type(error).__name__}}: {{said}}"]), file=out)
"""


def packages(needed: Mapping[str, str] = PACKAGES, devices: Iterable[str] = (LLVM, CUDA)) -> Finding:
    """Loads the required packages, and the modules that look for devices.

    A separate process loads them, which may crash (an instruction that this CPU lacks) or hang (a broken driver)."""
    # Another distribution may provide a module: opencv-python also has cv2.
    versions = [f"{name} {version}" for name in needed if (version := package_version(name))]
    text = ", ".join([f"accel_rl {__version__}", *versions])
    try:
        lines, end = _load([*needed.values(), *devices])
    except OSError as error:  # no process can start
        return Finding(f"{text}; not loaded: {describe_error(error)}")
    if end:
        module = lines[-1][0] if lines else "Python"
        command = "nvidia-smi (it must answer; else restart the driver)" if module == CUDA else _install(module, needed)
        what = f"loading {module} {end}"
        return Finding(what, (Problem("error", what, command, what),), is_fatal=True)
    errors = {module: error for module, error in lines if error and module in needed.values()}
    problems = [
        Problem("error", f"{module} cannot be imported: {error}", _install(module, needed), error)
        for module, error in errors.items()
    ]
    return Finding(text + (f"; cannot be imported: {', '.join(errors)}" if errors else ""), tuple(problems))


def _load(modules: list[str]) -> tuple[list[tuple[str, str]], str]:
    """Returns the modules that began to load, with their errors, and how the last one ended the process, if it did."""
    command = [sys.executable, "-P", "-c", SCRIPT, *modules]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=child_environment(), timeout=TIMEOUT_S
        )
        out, status = process.stdout, process.returncode
        end = f"kills Python with {signal.Signals(-status).name}" if status < 0 else f"ends Python with status {status}"
    except subprocess.TimeoutExpired as expired:
        out, status, end = expired.stdout or b"", None, f"hangs for {TIMEOUT_S:g} s"
    lines = [json.loads(line) for line in out.splitlines() if line.endswith(b"]")]
    return [(name, error) for name, error in lines], "" if status == 0 else end


def _install(module: str, needed: Mapping[str, str]) -> str:
    """Returns the command that installs a module, or reinstalls it if it exists."""
    distribution = next((name for name, each in needed.items() if each == module), module)
    again = "--force-reinstall " if importlib.util.find_spec(module.partition(".")[0]) else ""
    return f"pip install {again}{'llvmlite numba' if module == LLVM else distribution}"


def native_simulator() -> Finding:
    """Says whether the native simulator of Atari games works; compiles it first if needed."""
    from accel_rl.emulator.machine_code import cache_folder
    from accel_rl.envs.games.emulator_choice import describe_native, find_problem

    if what := find_problem():
        found = re.search(r"(pip install|export) [^)]+", what)
        command = found[0] if found else "pip install --force-reinstall numba llvmlite"
        what = what.removesuffix(f": {command}")
        slow = Problem("warning", f"Atari games run more slowly, with ale-py: {what}", command, what)
        return Finding(f"none: {what}", (slow,))
    cache, problems = cache_folder(), []
    if not os.access(next(folder for folder in (cache, *cache.parents) if folder.exists()), os.W_OK):
        what = f"{cache} cannot be written, so each start may compile the native simulator anew, for 20 to 40 s"
        problems = [Problem("warning", what, "export XDG_CACHE_HOME=FOLDER")]
    return Finding(describe_native(), tuple(problems))
