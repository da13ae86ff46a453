"""Names the processes of a run."""

import contextlib
from collections import Counter
from collections.abc import Sequence

import psutil

FORK_SERVER, PROBE = "accel_rl.processes.fork_server", "accel_rl.envs.probe"


def processes_of(command: int) -> list[psutil.Process]:
    """Returns the process of `accel-rl train` with this id, and all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(command)
        return [process, *process.children(recursive=True)]
    return []


def name_processes(command: int, processes: Sequence[psutil.Process]) -> dict[int, str]:
    """Returns the name of each of these processes of a run, by its id.

    Names are "command", "worker 0", and "workers' fork server", which forks them. With several learners: "learner 0",
    "learners' fork server", "learner 0's worker 0" and so on. "probe 0" finds an environment's spaces. Others, such as
    an environment's own processes, are "other process 0". Processes that end meanwhile are omitted."""
    children: dict[int, list[psutil.Process]] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            children.setdefault(process.ppid(), []).append(process)
    names: dict[int, str] = {}

    def add(pid: int, name: str, owner: str = "") -> None:
        names[pid] = name
        numbers: Counter[str] = Counter()
        for child in sorted(children.get(pid, []), key=lambda child: child.pid):
            with contextlib.suppress(psutil.Error):
                kind = _kind(child.cmdline(), is_forked=name.endswith("fork server"))
                number = "" if kind.endswith("fork server") else f" {numbers[kind]}"
                numbers[kind] += 1
                label = f"{owner}{kind}{number}"
                add(child.pid, label, f"{label}'s " if kind == "learner" else owner)

    add(command, "command")
    return names


def _kind(words: list[str], is_forked: bool) -> str:
    """Returns the kind of a process by the words of its command. is_forked: a fork server has the same words."""
    if PROBE in words:
        return "probe"
    if FORK_SERVER not in words:
        return "other process"
    program = words[words.index(FORK_SERVER) + 3]
    forked = program.partition(":")[0].rpartition(".")[2].removesuffix("_process")
    return forked if is_forked else f"{forked}s' fork server"
