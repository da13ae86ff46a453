"""The probe that loads packages in a process of its own, since loading may crash (by an instruction that this CPU
lacks) or hang (on a broken driver), and the report with it."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

from accel_rl.doctor.finding import Finding, Problem, describe
from accel_rl.doctor.software import EXTRAS, PACKAGES
from accel_rl.processes.spawning import child_environment

TIMEOUT_S = 120.0  # for all of them
CUDA = "torch.cuda"  # loading it looks for GPUs, too
NEEDED = (*PACKAGES.values(), "llvmlite.binding", CUDA)  # the rest of the report loads them
# Another probe tries the native simulator.
OPTIONAL = tuple(dict.fromkeys(module for extra, modules in EXTRAS.items() if extra != "native" for module in modules))

# Writes a line of JSON for each module before it is loaded, and another one if it is there but raises.
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
        if not isinstance(error, ModuleNotFoundError) or error.name != name.split(".")[0]:
            said = "".join(str(error).splitlines()[:1])
            print(json.dumps([name, f"{{type(error).__name__}}: {{said}}"]), file=out)
"""


def loading(needed: Sequence[str] = NEEDED, optional: Sequence[str] = OPTIONAL) -> Finding:
    """Loads modules; data["crashes"] has the one that ends Python or blocks it, if the report needs it."""
    try:
        lines, end = _load([*needed, *optional])
    except OSError as error:  # no process can be started
        return Finding(f"not tried: {describe(error)}", {"crashes": None})
    errors = {name: error for name, error in lines if error}
    problems = []
    if all(name in optional for name in errors):  # else optional ones may fail for a needed one, of which others tell
        problems += [
            Problem("optional", f"{name} is installed, but cannot be imported: {error}", _reinstall(name), error)
            for name, error in errors.items()
        ]
    data = {"crashes": None, "errors": errors}
    if not end:
        failed = f"; cannot be imported: {', '.join(errors)}" if errors else ""
        return Finding(f"no package crashes or hangs{failed}", data, tuple(problems))
    name = lines[-1][0] if lines else "Python"
    is_needed = name not in optional
    what = f"{name} {end} while it is loaded"
    command = "nvidia-smi (it must answer; else restart the driver)" if name == CUDA else _reinstall(name)
    problems.append(Problem("error" if is_needed else "optional", what, command, what))
    return Finding(what, data | {"crashes": name if is_needed else None}, tuple(problems))


def _load(names: Sequence[str]) -> tuple[list[tuple[str, str]], str]:
    """Returns the names of the modules that were begun, with their errors, and how the process died of the last one, if
    it did."""
    command = [sys.executable, "-P", "-c", SCRIPT, *names]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=child_environment(), timeout=TIMEOUT_S
        )
        out, status = process.stdout, process.returncode
        end = f"kills Python by {signal.Signals(-status).name}" if status < 0 else f"ends Python with status {status}"
    except subprocess.TimeoutExpired as expired:
        out, status, end = expired.stdout or b"", None, f"hangs for {TIMEOUT_S:g} s"
    lines = [json.loads(line) for line in out.splitlines() if line.endswith(b"]")]
    return [(name, error) for name, error in lines], "" if status == 0 else end


def _reinstall(module: str) -> str:
    distributions = {module: distribution for distribution, module in PACKAGES.items()}
    distributions |= {"llvmlite.binding": "llvmlite numba", "pygame": "pygame-ce"}
    return f"pip install --force-reinstall {distributions.get(module, module)}"
