"""Which of the processors that there are each part of a run is given: decided from what it is told alone."""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accel_rl.errors import UsageError
from accel_rl.hardware.topology import Cpus, Machine, count, read_machine, show_cpus

MAX_LEARNING_THREADS = 16  # the networks of this field gain nothing from more
MAX_SAMPLING_THREADS = 2  # of a batch of half the environments
LEAST_CORES_TO_RESERVE_ONE = 4
WORKERS_TO_KEEP = 0.75  # at least this share of them, when a core is reserved


@dataclass(frozen=True)
class Plan:
    """Who runs where, in a run of num_envs environments. None: wherever the operating system puts it."""

    machine: Machine
    num_envs: int
    worker_cpus: tuple[int | None, ...]  # of each simulator process, in order
    server_cpus: Cpus | None  # of this process, which chooses actions and learns
    sampling_threads: int  # of torch, on the CPU
    learning_threads: int
    warnings: tuple[str, ...] = ()

    @property
    def server_is_reserved(self) -> bool:
        """Whether this process has processors that no worker has."""
        return bool(self.server_cpus and self.worker_cpus and not {*self.server_cpus} & {*self.worker_cpus})

    def lines(self) -> list[str]:
        """For people to read: a line each on the processors, the workers, and this process."""
        return [
            f"processors  {self.machine}",
            f"workers     {self._workers()}",
            f"server      {self.server()}; "
            f"torch threads: {self.sampling_threads} sampling, {self.learning_threads} learning",
        ]

    def server(self) -> str:
        """Where this process is."""
        if self.server_cpus is None:
            return "not pinned"
        return f"on {show_cpus(self.server_cpus)}{', reserved for it' if self.server_is_reserved else ''}"

    def _workers(self) -> str:
        num_workers = len(self.worker_cpus)
        if not num_workers:
            return "none: environments are stepped in this process"
        per_worker = self.num_envs // num_workers
        text = f"{num_workers}, of {count(per_worker, 'environment')}{' each' if num_workers > 1 else ''}: "
        if serves_both_groups(self.num_envs, num_workers):
            return f"{text}{per_worker // 2} of each group, {_on(self.worker_cpus)}"
        half = num_workers // 2
        return f"{text}group 0 {_on(self.worker_cpus[:half])}, group 1 {_on(self.worker_cpus[half:])}"


def show_plans(devices: Sequence[str], plans: Sequence[Plan]) -> list[str]:
    """For people to read: the lines of the only learner's plan, or a line for each of several, by rank."""
    if len(plans) == 1:
        return plans[0].lines()
    width = max(map(len, devices))
    return [
        f"learner {rank:<3} {device:<{width}}  {_show_part(plan)}"
        for rank, (device, plan) in enumerate(zip(devices, plans, strict=True))
    ]


def _show_part(plan: Plan) -> str:
    nodes, num_workers = set(plan.machine.nodes), len(plan.worker_cpus)
    workers = f"{count(num_workers, 'worker')} {_on(plan.worker_cpus)}" if num_workers else "no workers"
    return (
        f"{'node' if len(nodes) == 1 else 'nodes'} {show_cpus(nodes)}: server {plan.server()}; "
        f"{workers}; {count(plan.num_envs, 'environment')}"
    )


def make_plan(
    machine: Machine,
    num_envs: int,
    num_workers: int | None = None,
    *,
    on_gpu: bool = False,
    gpu_node: int | None = None,
    sampling_threads: int | None = None,
    learning_threads: int | None = None,
) -> Plan:
    """The plan for a run whose network is on the CPU, or on a GPU of NUMA node gpu_node (None: not known).

    num_workers (0: this process steps the environments) and the threads of torch are picked where None. With a GPU,
    this process has a core of its own if there are enough; on the CPU, simulating and learning take turns on all, but
    of two processors one is left to choose actions."""
    plan, num_free = _place(machine, num_envs, num_workers, on_gpu, gpu_node, sampling_threads, learning_threads)
    return replace(plan, warnings=_warnings(num_envs, num_workers, [num_free]))


def make_plans(
    machine: Machine,
    num_envs_of_each: int,
    num_workers_of_each: int | None = None,
    *,
    gpu_nodes: Sequence[int | None],
    on_gpu: bool = False,
    share: bool = False,
    sampling_threads: int | None = None,
    learning_threads: int | None = None,
) -> tuple[Plan, ...]:
    """The plans of a run's learners, each on its part of the machine (gpu_nodes, share: see divide), to which all its
    threads are pinned if there are several. What else is picked is picked for each as by make_plan.

    The first plan has the warnings of all. They count environments and workers of the whole run."""
    num_learners = len(gpu_nodes)
    placed = [
        _place(part, num_envs_of_each, num_workers_of_each, on_gpu, node, sampling_threads, learning_threads)
        for part, node in zip(divide(machine, gpu_nodes, share), gpu_nodes, strict=True)
    ]
    plans = [plan for plan, _ in placed]
    if num_learners > machine.num_busy:
        text = f"learners={num_learners} share {count(machine.num_busy, 'processor')}"
        warnings: tuple[str, ...] = (f"{text}; {count(machine.num_busy, 'learner')} would have one each",)
    else:
        warnings = _warnings(num_envs_of_each, num_workers_of_each, [num_free for _, num_free in placed])
    return (replace(plans[0], warnings=warnings), *plans[1:])


def _place(
    machine: Machine,
    num_envs: int,
    num_workers: int | None,
    on_gpu: bool,
    gpu_node: int | None,
    sampling_threads: int | None,
    learning_threads: int | None,
) -> tuple[Plan, int]:
    """The plan, and how many processors it has for workers."""
    server_cpus, cores, num_busy = machine.cpus if machine.chosen else None, list(machine.cores), machine.num_busy
    if on_gpu and machine.can_pin and min(len(cores), num_busy) >= LEAST_CORES_TO_RESERVE_ONE:
        core = machine.nodes.index(gpu_node) if gpu_node in machine.nodes else 0
        num_left = min(num_busy - 1, len(machine.cpus) - len(cores[core]))
        if num_workers is None:  # 64 environments divide over 16 workers, but not over 15: then the core is needed
            enough = default_workers(num_envs, num_left) >= WORKERS_TO_KEEP * default_workers(num_envs, num_busy)
        else:
            enough = 0 < num_workers <= num_left
        if enough:
            server_cpus, num_busy = cores.pop(core), num_left
    elif not on_gpu and num_workers is None and num_busy == 2:
        # One simulates, the other chooses actions, both learn. Two workers beside the network: A2C on Pong trained 12
        # to 15 % slower, PPO 30 %.
        num_busy, sampling_threads = 1, sampling_threads or 1
    cpus = _spread(cores)
    if num_workers is None:
        num_workers = default_workers(num_envs, num_busy)
    num_threads = 1 if on_gpu else machine.num_busy  # beside a GPU there is next to nothing for them to do
    plan = Plan(
        machine,
        num_envs,
        tuple(cpus[worker % len(cpus)] if machine.can_pin else None for worker in range(num_workers)),
        server_cpus,
        sampling_threads or min(num_threads, MAX_SAMPLING_THREADS),
        learning_threads or min(num_threads, MAX_LEARNING_THREADS),
    )
    return plan, num_busy


def _warnings(num_envs: int, num_workers: int | None, num_free: list[int]) -> tuple[str, ...]:
    """What to say of idle or shared processors to learners of so many environments and workers each (None: by default),
    which have num_free processors for them."""
    num_learners, total = len(num_free), sum(num_free)
    picked = [default_workers(num_envs, num) for num in num_free]
    if num_workers is None:
        more = -(-num_envs // (2 * min(num_free))) * 2 * min(num_free)
        num_used = sum(default_workers(more, num) for num in num_free)
        if num_used <= sum(picked):
            return ()
        text = f"envs={num_learners * num_envs} keep {sum(picked)} of {total} processors busy"
        return (f"{text}; --envs {num_learners * more} would use {'them all' if num_used == total else num_used}",)
    if num_workers <= min(num_free):
        return ()
    text = f"workers={num_learners * num_workers} share {count(total, 'processor')}"
    return (f"{text}; --workers {num_learners * min(picked)} would have one each",)


def _spread(cores: list[Cpus]) -> list[int]:
    """One processor of each core, then the second of each, ...: the order in which workers take them.

    So few workers have cores of their own, and where each worker serves one group (the first half of them group 0), the
    two groups are on sibling threads of the same cores: while one waits for actions, the other has the core."""
    most = max(map(len, cores))
    return [core[thread] for thread in range(most) for core in cores if thread < len(core)]


def default_worker_cpus(num_workers: int) -> list[int | None]:
    """The processor of each worker where nobody has made a plan."""
    return list(make_plan(read_machine(), 2 * num_workers, num_workers).worker_cpus)


# ---- how several learners divide the machine ----


def divide(machine: Machine, gpu_nodes: Sequence[int | None], share: bool = False) -> list[Machine]:
    """The part of the machine that each of several learners gets: whole cores, as many as any other or one more.

    They are on the NUMA node of the learner's GPU as far as that has cores enough, the others on the nearest nodes, by
    number, that have idle ones; for None (no GPU, or not known) on as few nodes as possible, nodes in turn. With fewer
    cores than learners, hardware threads are dealt out. A quota is divided evenly. A single learner has everything.

    Raises UsageError for fewer processors, or less quota, than learners, unless they may share: then each has one
    processor, in turn."""
    num_learners = len(gpu_nodes)
    if num_learners == 1:
        return [machine]
    if num_learners > machine.num_busy and not share:
        quota = "" if machine.quota is None else f" with a quota of {machine.quota:g}"
        raise UsageError(
            f"learners={num_learners} need a processor each, but here are {machine.num_busy} (of "
            f"{show_cpus(machine.cpus)}{quota}); use no more than {count(machine.num_busy, 'learner')}, "
            "or --share-processors"
        )
    homes = [node if node in machine.nodes else None for node in gpu_nodes]
    parts = _deal(machine, homes) if num_learners <= len(machine.cpus) else _share(machine, homes)
    return [_part(machine, part, home, num_learners) for part, home in zip(parts, homes, strict=True)]


def _part(machine: Machine, cpus: set[int], home: int | None, num_learners: int) -> Machine:
    """These processors of the machine, those at home first, where its few workers are then."""
    cores = zip((tuple(cpu for cpu in core if cpu in cpus) for core in machine.cores), machine.nodes, strict=True)
    mine = sorted(((core, node) for core, node in cores if core), key=lambda core: core[1] != home)
    return replace(
        machine,
        cores=tuple(core for core, _ in mine),
        nodes=tuple(node for _, node in mine),
        quota=None if machine.quota is None else machine.quota / num_learners,
        chosen=machine.can_pin,
    )


def _deal(machine: Machine, homes: list[int | None]) -> list[set[int]]:
    """The processors of each learner, none twice."""
    idle: dict[int, list[Cpus]] = {node: [] for node in sorted(set(machine.nodes))}
    for core, node in zip(machine.cores, machine.nodes, strict=True):
        idle[node] += [core] if len(machine.cores) >= len(homes) else [(cpu,) for cpu in core]
    num_on = {node: len(pieces) for node, pieces in idle.items()}
    sizes = _sizes(homes, num_on)
    parts: list[list[Cpus]] = []
    for learner, home in enumerate(homes):
        num = 0
        if home is not None:
            wanted = sum(size for size, other in zip(sizes, homes, strict=True) if other == home)
            in_turn = len(range(homes[:learner].count(home), num_on[home], homes.count(home)))
            num = sizes[learner] if wanted <= num_on[home] else min(sizes[learner], in_turn)
        parts.append(_take(idle[home], num) if home is not None else [])
    for part, home, size in zip(parts, homes, sizes, strict=True):
        while missing := size - len(part):
            part += _take(idle[_next_node(idle, home)], missing)
    return [{cpu for piece in part for cpu in piece} for part in parts]


def _sizes(homes: list[int | None], num_on: dict[int, int]) -> list[int]:
    """How many of the pieces on each node each learner gets. The odd ones go to learners at whose home they are, spread
    over these: of two on each GPU, one has one more."""
    least, odd = divmod(sum(num_on.values()), len(homes))
    sizes = [least] * len(homes)
    for node, num in num_on.items():
        those = [learner for learner, home in enumerate(homes) if home == node]
        extra = max(0, min(odd, len(those), num - least * len(those)))
        for turn, learner in enumerate(those):
            sizes[learner] += turn * extra % len(those) < extra
        odd -= extra
    for learner in [learner for learner, size in enumerate(sizes) if size == least][:odd]:
        sizes[learner] += 1
    return sizes


def _next_node(idle: dict[int, list[Cpus]], home: int | None) -> int:
    """Where a learner takes what it is missing: the nearest node to its home, or the idlest one."""
    nodes = [node for node in idle if idle[node]]
    return min(nodes, key=lambda node: -len(idle[node]) if home is None else abs(node - home))


def _take(pieces: list[Cpus], num: int) -> list[Cpus]:
    taken, pieces[:num] = pieces[:num], []
    return taken


def _share(machine: Machine, homes: list[int | None]) -> list[set[int]]:
    """A processor for each learner, in turn, at its home if it has one."""
    node_of = {cpu: node for core, node in zip(machine.cores, machine.nodes, strict=True) for cpu in core}
    num_on: Counter[int] = Counter()
    chosen = []
    for home in homes:
        cpu = min((c for c in _spread(list(machine.cores)) if home in (None, node_of[c])), key=num_on.__getitem__)
        num_on[cpu] += 1
        chosen.append({cpu})
    return chosen


# ---- how environments divide ----


def divides_evenly(num_envs: int, num_workers: int) -> bool:
    """Whether each worker has as many of each of the two groups, or each group as many workers."""
    return num_envs % math.lcm(2, num_workers) == 0


def serves_both_groups(num_envs: int, num_workers: int) -> bool:
    """Whether each worker has environments of both groups; else the first half of the workers serves group 0."""
    return num_envs % (2 * num_workers) == 0


def default_workers(num_envs: int, num_cpus: int) -> int:
    """One simulator process a processor if the environments divide over them, else fewer."""
    return next((n for n in range(num_cpus, 1, -1) if divides_evenly(num_envs, n)), 1)


def _on(cpus: tuple[int | None, ...]) -> str:
    return f"on {show_cpus(known)}" if (known := {cpu for cpu in cpus if cpu is not None}) else "not pinned"


@contextlib.contextmanager
def pinned(cpus: Cpus | None) -> Iterator[None]:
    """Meanwhile every thread of this process is on the given processors, and whatever it starts. None: no change."""
    if cpus is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    _pin_threads(set(cpus))
    try:
        yield
    finally:
        _pin_threads(usual)


def _pin_threads(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cpus)
