"""Chooses the logical CPUs for each part of a run, from the topology and the settings."""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accel_rl.errors import count
from accel_rl.hardware.division import divide, spread
from accel_rl.hardware.topology import Cpus, CpuTopology, read_topology, show_cpus

MAX_LEARNING_THREADS = 16  # usual networks of RL gain nothing from more
MAX_SAMPLING_THREADS = 2  # the batches are half the environments
MIN_CORES_TO_RESERVE_ONE = 4
MIN_FLOPS_PER_THREAD = 200e6  # per update; with fewer, waiting costs more than a thread gains
MIN_ENVS_BESIDE_NETWORK = 8  # for each worker that shares two logical CPUs with the network

# Seconds of a step of all environments, measured with small networks on two logical CPUs of an Intel Xeon
# (benchmarks/results/worker_plan.json), and with pictures on two of an AMD EPYC (worker_plan_epyc.json).
ENV_S = 3e-6  # a worker's overhead for each environment
SERVER_S = 400e-6  # for choosing both groups' actions in this process
PICTURES_S = 1.4e-3  # extra time for convolutions, even on the smallest pictures
LEARNING_S = 2e-3  # extra time for learning, if the algorithm learns between two steps
SHARED_CPU_S = 550e-6  # extra time if all wait for a worker whose logical CPU this process has taken


@dataclass(frozen=True)
class Plan:
    """A plan of the logical CPUs for a learner's processes, with num_envs environments.

    worker_cpus: for each simulator process, in order. server_cpus: for this process, which chooses actions and learns.
    None: wherever the operating system puts it. sampling_threads, learning_threads: PyTorch's, on the CPU. num_free:
    logical CPUs available to workers. step_s: the seconds of an environment's step, if they decided the number of
    workers."""

    topology: CpuTopology
    num_envs: int
    worker_cpus: tuple[int | None, ...]
    server_cpus: Cpus | None
    sampling_threads: int
    learning_threads: int
    num_free: int
    warnings: tuple[str, ...] = ()
    step_s: float | None = None

    @property
    def server_is_reserved(self) -> bool:
        """True if this process has logical CPUs that no worker uses."""
        others = {*self.worker_cpus}
        return bool(self.server_cpus and others and None not in others and not {*self.server_cpus} & others)

    def lines(self, simulators: str | None = None) -> list[str]:
        """Returns one line each about the logical CPUs, the workers (or `simulators` instead), and this process."""
        return [
            f"CPUs        {self.topology}",
            simulators or f"workers     {self._workers()}{self._cost()}",
            f"server      {self.server()}; {self.threads()}",
        ]

    def threads(self) -> str:
        return f"torch threads: {self.sampling_threads} sampling, {self.learning_threads} learning"

    def server(self) -> str:
        """Describes where this process runs."""
        if self.server_cpus is None:
            return "not pinned"
        return f"on {show_cpus(self.server_cpus)}{', reserved for it' if self.server_is_reserved else ''}"

    def _workers(self) -> str:
        num_workers = len(self.worker_cpus)
        if not num_workers:
            return "none: environments are stepped in this process"
        per_worker = self.num_envs // num_workers
        if not divides_evenly(self.num_envs, num_workers):
            return f"{num_workers}, of {per_worker} or {per_worker + 1} environments each, {_on(self.worker_cpus)}"
        text = f"{num_workers}, of {count(per_worker, 'environment')}{' each' if num_workers > 1 else ''}: "
        if serves_both_groups(self.num_envs, num_workers):
            return f"{text}{per_worker // 2} of each group, {_on(self.worker_cpus)}"
        half = num_workers // 2
        return f"{text}group 0 {_on(self.worker_cpus[:half])}, group 1 {_on(self.worker_cpus[half:])}"

    def _cost(self) -> str:
        return "" if self.step_s is None else f"; a step of one takes {self.step_s * 1e6:.0f} us"


def show_plans(devices: Sequence[str], plans: Sequence[Plan], simulators: str | None = None) -> list[str]:
    """Returns the lines of the only learner's plan (see `Plan.lines`), or a line for each of several learners."""
    if len(plans) == 1:
        return plans[0].lines(simulators)
    lines, width = [], max(map(len, devices))
    for rank, (device, plan) in enumerate(zip(devices, plans, strict=True)):
        nodes, num_workers = set(plan.topology.nodes), len(plan.worker_cpus)
        workers = f"{count(num_workers, 'worker')} {_on(plan.worker_cpus)}" if num_workers else "no workers"
        lines.append(
            f"learner {rank:<3} {device:<{width}}  {'node' if len(nodes) == 1 else 'nodes'} {show_cpus(nodes)}: "
            f"server {plan.server()}; {workers}; {count(plan.num_envs, 'environment')}"
            f"{f'; {plan.threads()}' if device == 'cpu' else ''}"
        )
    return lines


def make_plan(
    topology: CpuTopology,
    num_envs: int,
    num_workers: int | None = None,
    *,
    on_gpu: bool = False,
    gpu_node: int | None = None,
    sampling_threads: int | None = None,
    learning_threads: int | None = None,
    step_s: float | None = None,
    server_s: float = SERVER_S,
    is_atari: bool = False,
) -> Plan:
    """Returns the plan for one learner whose network is on the CPU, or on a GPU of NUMA node gpu_node (None: unknown).

    num_workers (0: this process steps the environments) and the numbers of threads are chosen here if they are None.
    step_s: seconds of an environment's step (None: unknown). server_s: seconds of this process for a step of all
    environments. Without a GPU, both decide how many workers pay off. is_atari: the environments are Atari games. With
    a GPU, this process has a core to itself if there are enough. On the CPU, simulating and learning take turns on all
    logical CPUs; if there are two, one stays free to choose actions for few environments, or for Atari games."""
    server_cpus, cores, num_busy = topology.cpus if topology.chosen else None, list(topology.cores), topology.num_busy
    if on_gpu and topology.can_pin and min(len(cores), num_busy) >= MIN_CORES_TO_RESERVE_ONE:
        core = topology.nodes.index(gpu_node) if gpu_node in topology.nodes else 0
        num_left = min(num_busy - 1, len(topology.cpus) - len(cores[core]))
        if num_workers is None or 0 < num_workers <= num_left:
            server_cpus, num_busy = cores.pop(core), num_left
    elif not on_gpu and num_workers != 0 and num_busy == 2:
        # The network acts on one thread next to the workers, and learns on both CPUs. On two cores of an EPYC, training
        # on Atari games is 6 to 16 % faster with one worker than with two (benchmarks/results/worker_plan_atari.json).
        # Two hyperthreads of a core simulate hardly faster than one.
        sampling_threads = sampling_threads or 1
        are_few = step_s is None and num_envs < 2 * MIN_ENVS_BESIDE_NETWORK
        if num_workers is None and (len(cores) == 1 or are_few or is_atari):
            num_busy = 1
    cpus = spread(cores)
    chosen_workers, warnings = num_workers, _warnings(num_envs, num_workers, [num_busy], on_gpu)
    if chosen_workers is None:
        chosen_workers = min(num_envs, num_busy) if on_gpu else default_workers(num_envs, num_busy)
    if num_workers is not None or on_gpu:
        step_s = None
    elif step_s is not None and (enough := workers_worth(num_envs, num_busy, step_s, server_s)) < chosen_workers:
        chosen_workers, warnings = enough, ()
    num_threads = 1 if on_gpu else topology.num_busy  # with a GPU threads have almost nothing to do
    return Plan(
        topology,
        num_envs,
        tuple(cpus[worker % len(cpus)] if topology.can_pin else None for worker in range(chosen_workers)),
        server_cpus,
        sampling_threads or min(num_threads, MAX_SAMPLING_THREADS),
        learning_threads or min(num_threads, MAX_LEARNING_THREADS),
        num_busy,
        warnings,
        step_s,
    )


def make_plans(
    topology: CpuTopology,
    num_envs_of_each: int,
    num_workers_of_each: int | None = None,
    *,
    gpu_nodes: Sequence[int | None],
    on_gpu: bool = False,
    share: bool = False,
    sampling_threads: int | None = None,
    learning_threads: int | None = None,
    step_s: float | None = None,
    server_s: float = SERVER_S,
    is_atari: bool = False,
) -> tuple[Plan, ...]:
    """Returns the plans of a run's learners, each for its part of the machine (gpu_nodes, share: see divide).

    With several learners, all threads of each are pinned to its part. make_plan chooses everything else; it gets step_s
    only if there is one learner. The first plan has the warnings, which count environments and workers of the whole
    run."""
    num_learners = len(gpu_nodes)
    plans = [
        make_plan(
            part,
            num_envs_of_each,
            num_workers_of_each,
            on_gpu=on_gpu,
            gpu_node=node,
            sampling_threads=sampling_threads,
            learning_threads=learning_threads,
            step_s=step_s if num_learners == 1 else None,
            server_s=server_s,
            is_atari=is_atari,
        )
        for part, node in zip(divide(topology, gpu_nodes, share), gpu_nodes, strict=True)
    ]
    if num_learners == 1:
        return (plans[0],)
    warnings = _warnings(num_envs_of_each, num_workers_of_each, [plan.num_free for plan in plans], on_gpu)
    if num_learners > topology.num_busy:
        text = f"learners={num_learners} share {count(topology.num_busy, 'logical CPU')}"
        warnings = (f"{text}; {count(topology.num_busy, 'learner')} would have one each",)
    return tuple(replace(plan, warnings=() if rank else warnings) for rank, plan in enumerate(plans))


def learning_threads_for(flops: float) -> int:
    """Returns the number of threads that an update of this many FLOPs keeps busy.

    On two cores of an AMD EPYC, two threads train A2C with updates of 342 MFLOP 1.03 times as fast as one
    (benchmarks/results/worker_plan_epyc.json). But if other programs use these cores, the threads wait for each other,
    and two runs at once are much slower than with one thread each (docs/hardware.md)."""
    return max(1, min(MAX_LEARNING_THREADS, int(flops / MIN_FLOPS_PER_THREAD)))


def _warnings(num_envs: int, num_workers: int | None, num_free: list[int], on_gpu: bool) -> tuple[str, ...]:
    """Returns warnings about idle or shared logical CPUs. num_envs, num_workers (None: the default): each learner's;
    num_free: each learner's number of logical CPUs for workers."""
    num_learners, total, choose = len(num_free), sum(num_free), min if on_gpu else default_workers
    picked = [choose(num_envs, num) for num in num_free]
    if num_workers is None:
        more = -(-num_envs // (2 * min(num_free))) * 2 * min(num_free)
        num_used = sum(choose(more, num) for num in num_free)
        if num_used <= sum(picked):
            return ()
        text = f"envs={num_learners * num_envs} keep {sum(picked)} of {total} logical CPUs busy"
        return (f"{text}; --envs {num_learners * more} would use {'them all' if num_used == total else num_used}",)
    if num_workers <= min(num_free):
        return ()
    text = f"workers={num_learners * num_workers} share {count(total, 'logical CPU')}"
    return (f"{text}; --workers {num_learners * min(picked)} would have one each",)


def default_worker_cpus(num_workers: int) -> list[int | None]:
    """Returns the logical CPU of each worker, for a sampler without a plan."""
    return list(make_plan(read_topology(), 2 * num_workers, num_workers).worker_cpus)


# ---- how environments divide ----


def divides_evenly(num_envs: int, num_workers: int) -> bool:
    """Returns whether each worker can have equally many environments of both groups, or each group equally many
    workers."""
    return num_envs % math.lcm(2, num_workers) == 0


def serves_both_groups(num_envs: int, num_workers: int) -> bool:
    """Returns whether each worker has environments of both groups; else the first half of workers serves group 0."""
    return num_envs % (2 * num_workers) == 0


def default_workers(num_envs: int, num_cpus: int) -> int:
    """Returns num_cpus, or the largest smaller number of workers that the environments divide over."""
    return next((n for n in range(num_cpus, 1, -1) if divides_evenly(num_envs, n)), 1)


def server_seconds(*, sees_pictures: bool, learns_on_step: bool) -> float:
    """Estimates the seconds that this process takes for a step of all environments.

    sees_pictures: the network chooses actions from pictures. learns_on_step: the algorithm learns between two steps."""
    return SERVER_S + (PICTURES_S if sees_pictures else 0) + (LEARNING_S if learns_on_step else 0)


def workers_worth(num_envs: int, num_cpus: int, step_s: float, server_s: float = SERVER_S) -> int:
    """Returns the number of workers that makes a step of all environments fastest; the smallest if several do.

    step_s: seconds of one environment's step. server_s: seconds of this process for a step of all (server_seconds).
    Workers on other logical CPUs work while this process chooses actions: more of them pay off until they keep up with
    it. If all logical CPUs have a worker, this process interrupts them, which pays off only for slow environments."""
    env_s = num_envs * (step_s + ENV_S)

    def all_step_s(num_workers: int) -> float:
        if num_workers < num_cpus:
            return max(server_s, env_s / num_workers)
        return max(server_s, (env_s + server_s) / num_cpus) + SHARED_CPU_S

    return min({default_workers(num_envs, n) for n in range(1, num_cpus + 1)}, key=lambda n: (all_step_s(n), n))


def _on(cpus: tuple[int | None, ...]) -> str:
    return f"on {show_cpus(known)}" if (known := {cpu for cpu in cpus if cpu is not None}) else "not pinned"


@contextlib.contextmanager
def pinned(cpus: Cpus | None) -> Iterator[None]:
    """Pins all threads of this process, and those it starts, to logical CPUs while entered. None: changes nothing."""
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
        with contextlib.suppress(OSError):  # the thread has ended, or the CPUs have been taken away
            os.sched_setaffinity(int(thread), cpus)
