"""Divides the machine between several learners, and cores between workers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from accel_rl.errors import UsageError, count
from accel_rl.hardware.topology import Cpus, CpuTopology, show_cpus


def divide(topology: CpuTopology, gpu_nodes: Sequence[int | None], share: bool = False) -> list[CpuTopology]:
    """Returns each learner's part of the machine: whole cores, whose numbers differ by one at most.

    A learner gets cores of its GPU's NUMA node while there are enough, then cores of the nearest nodes (by number). A
    learner without a known node (None) gets cores of as few nodes as possible. With fewer cores than learners, hardware
    threads are divided instead. A quota is divided evenly.

    Raises UsageError if there are more learners than logical CPUs (or than the quota), unless share lets several
    learners use one logical CPU."""
    num_learners = len(gpu_nodes)
    if num_learners == 1:
        return [topology]
    if num_learners > topology.num_busy and not share:
        quota = "" if topology.quota is None else f" with a quota of {topology.quota:g}"
        raise UsageError(
            f"learners={num_learners} need a logical CPU each, but there are {topology.num_busy} (of "
            f"{show_cpus(topology.cpus)}{quota}); use no more than {count(topology.num_busy, 'learner')}, "
            "or --share-processors"
        )
    homes = [node if node in topology.nodes else None for node in gpu_nodes]
    parts = _deal(topology, homes) if num_learners <= len(topology.cpus) else _share(topology, homes)
    return [_part(topology, part, home, num_learners) for part, home in zip(parts, homes, strict=True)]


def _part(topology: CpuTopology, cpus: set[int], home: int | None, num_learners: int) -> CpuTopology:
    """Returns the topology of these logical CPUs: the home node's come first, so a few workers run there."""
    cores = zip((tuple(cpu for cpu in core if cpu in cpus) for core in topology.cores), topology.nodes, strict=True)
    mine = sorted(((core, node) for core, node in cores if core), key=lambda core: core[1] != home)
    return replace(
        topology,
        cores=tuple(core for core, _ in mine),
        nodes=tuple(node for _, node in mine),
        quota=None if topology.quota is None else topology.quota / num_learners,
        chosen=topology.can_pin,
    )


def _deal(topology: CpuTopology, homes: list[int | None]) -> list[set[int]]:
    """Returns the logical CPUs of each learner, none twice."""
    idle: dict[int, list[Cpus]] = {node: [] for node in sorted(set(topology.nodes))}
    for core, node in zip(topology.cores, topology.nodes, strict=True):
        idle[node] += [core] if len(topology.cores) >= len(homes) else [(cpu,) for cpu in core]
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
            nodes = [node for node in idle if idle[node]]  # the nearest one is next, or the one with most idle pieces
            node = min(nodes, key=lambda node: -len(idle[node]) if home is None else abs(node - home))
            part += _take(idle[node], missing)
    return [{cpu for piece in part for cpu in piece} for part in parts]


def _sizes(homes: list[int | None], num_on: dict[int, int]) -> list[int]:
    """Returns each learner's number of pieces (cores, or threads). If they do not divide evenly, the remaining pieces
    of a node go to learners whose home it is, at most one to each."""
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


def _take(pieces: list[Cpus], num: int) -> list[Cpus]:
    taken, pieces[:num] = pieces[:num], []
    return taken


def _share(topology: CpuTopology, homes: list[int | None]) -> list[set[int]]:
    """Returns one logical CPU for each learner, in turn, on its home node if it has one."""
    node_of = {cpu: node for core, node in zip(topology.cores, topology.nodes, strict=True) for cpu in core}
    num_on: Counter[int] = Counter()
    chosen = []
    for home in homes:
        cpu = min((c for c in spread(list(topology.cores)) if home in (None, node_of[c])), key=num_on.__getitem__)
        num_on[cpu] += 1
        chosen.append({cpu})
    return chosen


def spread(cores: list[Cpus]) -> list[int]:
    """Returns the order in which workers take logical CPUs: the first of each core, then the second of each, ...

    So each of a few workers has a core to itself. If each worker serves one group (the first half group 0), sibling
    threads of a core serve both groups: while one waits for actions, the other has the core."""
    most = max(map(len, cores))
    return [core[thread] for thread in range(most) for core in cores if thread < len(core)]
