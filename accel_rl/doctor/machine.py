"""Probes of the machine: CPUs, memory, shared memory, limits, folders.

They import other packages themselves, since those may be broken."""

import contextlib
import importlib.util
import os
import platform
import resource
import shutil
import tempfile
from pathlib import Path

from accel_rl.doctor.finding import Finding, Problem, describe
from accel_rl.hardware.host_memory import free_and_total, free_host_bytes
from accel_rl.hardware.topology import available_cpus, control_groups, count, read_topology

GB, MB = 1 << 30, 1 << 20
LEAST_MEMORY = 1 * GB  # A2C on Pong with four workers takes 0.33 GB, with CUDA more
LEAST_DEV_SHM = 512 * MB
LEAST_DISK = 1 * GB
SHARED_MEMORY = 32 * MB  # tried; A2C on Pong with its defaults takes 2 MB
LEARNER_FILES, LEARNER_PROCESSES = 128, 64  # of a learner and of PyTorch's threads, with some to spare
FILES_PER_CPU, PROCESSES_PER_CPU = 4, 4  # of the workers, whose number follows that of the logical CPUs


def system() -> Finding:
    """Names the operating system and Python."""
    libc = " ".join(platform.libc_ver()).strip()
    data = {"system": platform.system(), "release": platform.release(), "python": platform.python_version()}
    return Finding(f"{data['system']} {data['release']}, {libc or 'no glibc'}, Python {data['python']}", data)


def cpu(root: Path = Path("/")) -> Finding:
    """Names the processor."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = (root / "proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    return Finding(name, {"name": name})


def logical_cpus(root: Path = Path("/")) -> Finding:
    """Says which logical CPUs this process may use: cores, hardware threads, NUMA nodes, quota."""
    topology = read_topology(root=root)
    num_cpus, quota, problems = len(topology.cpus), topology.quota, []
    if num_cpus == 1:
        what = "there is one logical CPU: simulators and network take turns on it"
        problems.append(Problem("warning", what, _more_cpus(2)))
    elif quota is not None and quota < num_cpus:
        what = f"a quota of {quota:g} CPUs leaves {num_cpus - quota:g} of {num_cpus} logical CPUs idle"
        problems.append(Problem("warning", what, _more_cpus(num_cpus)))
    data = {
        "cores": len(topology.cores),
        "logical_cpus": num_cpus,
        "online": topology.num_online,
        "threads_per_core": max(map(len, topology.cores)),
        "numa_nodes": len(set(topology.nodes)),
        "quota": quota,
    }
    return Finding(str(topology), data, tuple(problems))


def _more_cpus(num: int) -> str:
    return f"docker run --cpus={num} (Kubernetes: resources.limits.cpu; SLURM: --cpus-per-task; taskset)"


def load() -> Finding:
    """Says how busy other programs keep this machine, since they slow the self-test down."""
    average, num_cpus = os.getloadavg()[0], len(available_cpus())
    text = f"{average:.1f} programs were running, on average over a minute"
    what = f"{average:.1f} other programs want {count(num_cpus, 'logical CPU')}: the speeds above are too low"
    problem = Problem("warning", what, "top")
    return Finding(text, {"load_average": round(average, 2)}, (problem,) if average > num_cpus / 2 else ())


def memory() -> Finding:
    """Says how much memory there is, and how much of it the control group and other limits allow."""
    found, free = free_and_total(), free_host_bytes()
    total = found[0][1] if found else 0
    limit = min((limit for _, limit in found[1:]), default=total)
    is_limited = limit < total
    text = f"{free / GB:.1f} of {min(limit, total) / GB:.1f} GB free"
    text += f"; the control group's limit, of {total / GB:.1f} GB" if is_limited else ", no limit"
    data = {"total_bytes": total, "free_bytes": free, "limit_bytes": limit if is_limited else None}
    problems = []
    if found and free < LEAST_MEMORY:
        way_out = "docker run --memory=8g" if is_limited else "ps aux --sort=-rss | head"
        problems.append(Problem("error", f"{_size(free)} of memory is too little for most runs", way_out))
    address_space, _ = _limits(resource.RLIMIT_AS)
    data["address_space_bytes"] = address_space
    if address_space is not None:
        text += f"; addresses are limited to {address_space / GB:.1f} GB"
        what = "the address space is limited: PyTorch and CUDA reserve far more addresses than they use memory"
        problems.append(Problem("warning", what, "ulimit -v unlimited"))
    return Finding(text, data, tuple(problems))


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Tries the anonymous shared memory that workers write observations into, and reads the size of /dev/shm.

    Runs themselves use nothing of /dev/shm; ViZDoom and NCCL, for several GPUs, do."""
    from accel_rl.hardware.shared_memory import SharedArrays

    try:
        memory = SharedArrays({"bytes": ((SHARED_MEMORY,), "uint8")})
    except OSError as error:
        what = f"shared memory cannot be made ({error.strerror}), which workers need"
        problem = Problem("error", what, "docker run --security-opt seccomp=unconfined; or train with --sampler serial")
        return Finding(f"none: {error.strerror}", {"anonymous": False}, (problem,))
    memory.close()
    try:
        size, _, free = shutil.disk_usage(folder)
    except OSError:
        return Finding(f"anonymous, as runs use it; no {folder}", {"anonymous": True, "dev_shm_bytes": None})
    data = {"anonymous": True, "dev_shm_bytes": size, "dev_shm_free_bytes": free}
    text = f"anonymous, as runs use it; {folder} has {_size(free)} of {_size(size)} free"
    users = _users_of_dev_shm()
    what = f"{folder} has {_size(free)} free; " + (
        f"{' and '.join(users)} may need more"
        if users
        else "runs do not use it, but NCCL (several GPUs) and ViZDoom do"
    )
    command = "docker run --shm-size=1g" + ("" if _is_container() else f" (here: mount -o remount,size=1g {folder})")
    problem = Problem("warning" if users else "optional", what, command)
    return Finding(text, data, (problem,) if free < LEAST_DEV_SHM else ())


def _users_of_dev_shm() -> list[str]:
    """Returns what is here that keeps its shared memory in /dev/shm."""
    users = ["ViZDoom"] if importlib.util.find_spec("vizdoom") else []
    with contextlib.suppress(Exception):  # a broken PyTorch is another probe's
        from accel_rl.hardware.devices import num_gpus

        users += ["NCCL (several GPUs)"] if num_gpus() > 1 else []
    return users


def _is_container() -> bool:
    return any(Path(name).exists() for name in ("/.dockerenv", "/run/.containerenv"))


def open_files() -> Finding:
    """Compares the limit of open files with what a run with a worker for each logical CPU opens."""
    soft, hard = _limits(resource.RLIMIT_NOFILE)
    needed = LEARNER_FILES + FILES_PER_CPU * read_topology().num_busy
    data = {"limit": soft, "hard_limit": hard, "needed": needed}
    problems = []
    if soft is not None and soft < needed:
        command = f"ulimit -n {needed * 8}"
        if hard is not None and hard < needed * 8:
            command = f"docker run --ulimit nofile={needed * 8} (else: /etc/security/limits.conf)"
        problems = [Problem("warning", f"a run needs up to {needed} open files, but only {soft} are allowed", command)]
    return Finding(f"{_show(soft)} (at most {_show(hard)}); a run needs up to {needed}", data, tuple(problems))


def processes(root: Path = Path("/")) -> Finding:
    """Compares the limits of processes and threads, the user's and the control group's, with what a run starts."""
    soft, _ = _limits(resource.RLIMIT_NPROC)
    needed = LEARNER_PROCESSES + PROCESSES_PER_CPU * read_topology(root=root).num_busy
    is_root = os.geteuid() == 0  # which has no such limit
    user_left = None if soft is None or is_root else max(0, soft - _num_own_threads())
    group_left = _processes_left(root)
    left = min((each for each in (user_left, group_left) if each is not None), default=None)
    data = {"left": left, "needed": needed, "user_left": user_left, "control_group_left": group_left}
    problems = []
    if user_left is not None and user_left < needed:
        what = f"a run needs up to {needed} processes and threads, but this user may start only {user_left} more"
        problems.append(Problem("warning", what, "ulimit -u unlimited (or: docker run --ulimit nproc=65536)"))
    if group_left is not None and group_left < needed:
        what = f"a run needs up to {needed} processes and threads, but the control group takes only {group_left} more"
        problems.append(Problem("warning", what, "docker run --pids-limit=4096 (systemd: TasksMax=)"))
    text = "no limit" if left is None else f"{left} more can be started"
    return Finding(f"{text}; a run needs up to {needed}", data, tuple(problems))


def _num_own_threads() -> int:
    """Returns how many threads all processes of this user have, which is what the limit counts."""
    import psutil

    users = psutil.process_iter(["uids", "num_threads"])
    return sum(p.info["num_threads"] or 0 for p in users if p.info["uids"] and p.info["uids"].real == os.getuid())


def _processes_left(root: Path) -> int | None:
    """Returns how many more processes the control groups allow; None: any number."""
    left = []
    for folder in control_groups("pids", root):
        with contextlib.suppress(OSError, ValueError):  # also of "max"
            limit, current = (int((folder / f"pids.{name}").read_text()) for name in ("max", "current"))
            left.append(max(0, limit - current))
    return min(left, default=None)


def folders(current: Path = Path(".")) -> Finding:
    """Says whether runs can be written into the current folder, and temporary files anywhere."""
    problems = []
    try:
        temporary: str | None = tempfile.gettempdir()
    except OSError as error:
        temporary = None
        problems.append(Problem("error", f"no temporary files: {error}", "export TMPDIR=FOLDER", describe(error)))
    data = {"current": str(current.absolute()), "is_writable": os.access(current, os.W_OK), "temporary": temporary}
    free = shutil.disk_usage(current).free
    data["free_bytes"] = free
    if not data["is_writable"]:
        what = "the current folder cannot be written, into which runs are written by default"
        problems.append(Problem("warning", what, "accel-rl train --out FOLDER"))
    elif free < LEAST_DISK:
        what = f"the disk of the current folder has {_size(free)} left for checkpoints"
        problems.append(Problem("warning", what, "accel-rl train --out FOLDER"))
    can = "can" if data["is_writable"] else "cannot"
    text = f"the current one {can} be written, {_size(free)} free; temporary files in {temporary or 'none'}"
    return Finding(text, data, tuple(problems))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GB:,.1f} GB" if num_bytes >= GB else f"{num_bytes / MB:,.0f} MB"


def _limits(kind: int) -> tuple[int | None, int | None]:
    """Returns this process's soft and hard limit of a kind; None: there is none."""
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(kind))
    return soft, hard


def _show(limit: int | None) -> str:
    return "any number" if limit is None else str(limit)
