"""Probes the machine: CPUs, memory, shared memory, folders.

The self-test shows limits of open files and processes, since a run that meets one says what to do."""

import os
import platform
import resource
import shutil
import tempfile
from pathlib import Path

from accel_rl.doctor.finding import Finding, Problem
from accel_rl.errors import RunError, count, describe_error
from accel_rl.hardware.description import cpu_model
from accel_rl.hardware.host_memory import free_and_total, free_host_bytes
from accel_rl.hardware.topology import available_cpus, read_topology

GB, MB = 1 << 30, 1 << 20
MIN_MEMORY = 1 * GB  # A2C on Pong with four workers takes 0.33 GB, more with CUDA
MIN_DEV_SHM = 512 * MB
MIN_DISK = 1 * GB
SHARED_MEMORY = 32 * MB  # size of the test; A2C on Pong with its defaults takes 2 MB


def system() -> Finding:
    """Names the operating system, Python and the processor."""
    libc = " ".join(platform.libc_ver()).strip() or "no glibc"
    python = platform.python_version()
    return Finding(f"{platform.system()} {platform.release()}, {libc}, Python {python}, {cpu_model()}")


def logical_cpus(root: Path = Path("/")) -> Finding:
    """Describes the logical CPUs that this process may use: cores, hardware threads, NUMA nodes, quota."""
    topology = read_topology(root=root)
    num_cpus, quota, what = len(topology.cpus), topology.quota, ""
    if num_cpus == 1:
        what = "there is one logical CPU: simulators and network take turns on it"
    elif quota is not None and quota < num_cpus:
        what = f"a quota of {quota:g} CPUs leaves {num_cpus - quota:g} of {num_cpus} logical CPUs idle"
    more = f"docker run --cpus={max(2, num_cpus)} (Kubernetes: resources.limits.cpu; SLURM: --cpus-per-task; taskset)"
    return Finding(str(topology), (Problem("warning", what, more),) if what else ())


def load() -> Finding:
    """Says how busy other programs keep this machine, since they slow the self-test down."""
    average, num_cpus = os.getloadavg()[0], len(available_cpus())
    text = f"{average:.1f} programs were running, on average over a minute"
    what = f"{average:.1f} other programs compete for {count(num_cpus, 'logical CPU')}: the speeds above are too low"
    return Finding(text, (Problem("warning", what, "top"),) if average > num_cpus / 2 else ())


def memory() -> Finding:
    """Says how much memory is free, and the limits of the control group and of addresses."""
    totals, free, problems = [total for _, total in free_and_total()], free_host_bytes(), []
    smallest = min(totals, default=0)
    is_limited = bool(totals) and smallest < totals[0]
    text = f"{_size(free)} of {_size(smallest)} free"
    text += f"; limited by the control group: the machine has {_size(totals[0])}" if is_limited else ", no limit"
    if totals and free < MIN_MEMORY:
        way_out = "docker run --memory=8g" if is_limited else "ps aux --sort=-rss | head"
        problems.append(Problem("error", f"{_size(free)} of memory is too little for most runs", way_out))
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        text += f"; addresses are limited to {_size(addresses)}"
        what = "the address space is limited: PyTorch and CUDA reserve far more addresses than they use memory"
        problems.append(Problem("warning", what, "ulimit -v unlimited"))
    return Finding(text, tuple(problems))


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Tries anonymous shared memory, which holds workers' observations, and reads the size of /dev/shm.

    Runs do not use /dev/shm; ViZDoom and NCCL do."""
    from accel_rl.hardware.shared_memory import SharedArrays

    try:
        SharedArrays({"bytes": ((SHARED_MEMORY,), "uint8")}).close()
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or error
        what = f"shared memory cannot be made ({reason}), which workers need"
        command = "docker run --security-opt seccomp=unconfined; or train with --sampler serial"
        return Finding(f"none: {reason}", (Problem("error", what, command),))
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Finding(f"anonymous, as runs use it; no {folder}")
    what = f"{folder} has {_size(free)} free; runs do not use it, but NCCL (several GPUs) and ViZDoom do"
    command = f"docker run --shm-size=1g (outside a container: mount -o remount,size=1g {folder})"
    problems = (Problem("optional", what, command),) if free < MIN_DEV_SHM else ()
    return Finding(f"anonymous, as runs use it; {folder} has {_size(free)} free", problems)


def folders(current: Path = Path(".")) -> Finding:
    """Says whether runs can write to the current folder, and to a folder of temporary files."""
    problems, free = [], shutil.disk_usage(current).free
    try:
        temporary = f"temporary files in {tempfile.gettempdir()}"
    except OSError as error:
        temporary = "no temporary files"
        problems.append(Problem("error", f"{temporary}: {error}", "export TMPDIR=FOLDER", describe_error(error)))
    is_writable = os.access(current, os.W_OK)
    if not is_writable or free < MIN_DISK:
        what = f"has {_size(free)} left for checkpoints" if is_writable else "cannot be written"
        problems.append(Problem("warning", f"the current folder {what}", "accel-rl train --out FOLDER"))
    can = "can" if is_writable else "cannot"
    return Finding(f"the current one {can} be written, {_size(free)} free; {temporary}", tuple(problems))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GB:,.1f} GB" if num_bytes >= GB else f"{num_bytes / MB:,.0f} MB"
