"""Tests of how several learners divide a machine, on machines of every shape."""

import random
from typing import Any

import pytest

from accel_rl.errors import UsageError
from accel_rl.hardware.division import divide
from accel_rl.hardware.placement import Plan, default_workers, make_plan, make_plans, show_plans
from accel_rl.hardware.topology import CpuTopology, parse_cpus, show_cpus
from tests.helpers.machines import EIGHT, TWO_NODES

DGX_1: dict[str, Any] = {"cores": [f"{n},{n + 40}" for n in range(40)], "nodes": ["0-19,40-59", "20-39,60-79"]}
DGX_A100: dict[str, Any] = {  # 4 NUMA nodes in each of 2 sockets
    "cores": [f"{n},{n + 128}" for n in range(128)],
    "nodes": [f"{n}-{n + 15},{n + 128}-{n + 143}" for n in range(0, 128, 16)],
}
LAPTOP: dict[str, Any] = {"cores": [f"{n},{n + 4}" for n in range(4)]}
PAIR: dict[str, Any] = {"cores": ["0", "1"]}
SIXTEEN: dict[str, Any] = {"cores": [str(n) for n in range(16)]}
DGX_1_GPUS = [0, 0, 0, 0, 1, 1, 1, 1]
DGX_A100_GPUS = [3, 3, 1, 1, 7, 7, 5, 5]


def parts_of(topology: CpuTopology, gpu_nodes: Any, share: bool = False) -> list[str]:
    return [show_cpus(part.cpus) for part in divide(topology, gpu_nodes, share)]


def workers_of(plan: Plan) -> list[int]:
    return [cpu for cpu in plan.worker_cpus if cpu is not None]


def test_dgx_1_gives_the_papers_five_cores_to_each_gpu(topology: Any) -> None:
    """On a DGX-1 each GPU has five cores of its socket: one for the server, four for simulators."""
    plans = make_plans(topology(**DGX_1), 16, gpu_nodes=DGX_1_GPUS, on_gpu=True)
    for rank, plan in enumerate(plans):
        first = 5 * rank
        assert plan.server_cpus == (first, first + 40) and plan.server_is_reserved
        four = range(first + 1, first + 5)
        assert workers_of(plan) == [*four, *(cpu + 40 for cpu in four)]
        assert (plan.num_envs, plan.sampling_threads, plan.learning_threads) == (16, 1, 1)
        assert set(plan.topology.nodes) == {rank // 4} and plan.warnings == ()
    few = make_plans(topology(**DGX_1), 8, gpu_nodes=DGX_1_GPUS, on_gpu=True)  # PPO's
    for plan in few:  # each worker serves one group, and each core has both groups
        groups = workers_of(plan)[:4], workers_of(plan)[4:]
        assert [cpu + 40 for cpu in groups[0]] == groups[1]


@pytest.mark.parametrize(
    ("gpu_nodes", "parts"),
    [
        ([0, 0], ["0-9,20-29,40-49,60-69", "10-19,30-39,50-59,70-79"]),
        ([0, 1], ["0-19,40-59", "20-39,60-79"]),
        (
            [0, 0, 0, 0],
            ["0-4,20-24,40-44,60-64", "5-9,25-29,45-49,65-69", "10-14,30-34,50-54,70-74", "15-19,35-39,55-59,75-79"],
        ),
        ([0, 0, 1, 1], ["0-9,40-49", "10-19,50-59", "20-29,60-69", "30-39,70-79"]),
        ([None, 7], ["0-19,40-59", "20-39,60-79"]),
    ],
)
def test_some_of_the_gpus_have_the_whole_machine(gpu_nodes: Any, parts: list[str], topology: Any) -> None:
    """Learners on some of the GPUs divide the whole machine evenly, each taking cores of its socket first."""
    dgx = topology(**DGX_1)
    assert parts_of(dgx, gpu_nodes) == parts
    for plan, node in zip(make_plans(dgx, 16, gpu_nodes=gpu_nodes, on_gpu=True), gpu_nodes, strict=True):
        assert plan.server_cpus and plan.server_is_reserved and len(plan.worker_cpus) == 16
        if node in (0, 1):
            assert {cpu // 20 % 2 for cpu in (*plan.server_cpus, *workers_of(plan)[:4])} == {node}


def test_dgx_a100_borrows_from_the_node_beside(topology: Any) -> None:
    """On a DGX A100 each learner has as many cores of a neighboring node as of its GPU's, and uses its GPU's first."""
    plans = make_plans(topology(**DGX_A100), 16, gpu_nodes=DGX_A100_GPUS, on_gpu=True)
    assert sorted(cpu for plan in plans for cpu in plan.topology.cpus) == [*range(256)]
    for plan, node in zip(plans, DGX_A100_GPUS, strict=True):
        assert sorted(plan.topology.nodes) == [node - 1] * 8 + [node] * 8
        assert plan.server_cpus and {cpu % 128 // 16 for cpu in plan.server_cpus} == {node}
        assert {cpu // 16 for cpu in workers_of(plan)[:7]} == {node}
    assert plans[0].warnings == ("envs=128 keep 128 of 240 logical CPUs busy; --envs 480 would use them all",)
    assert all(plan.warnings == () for plan in plans[1:])


@pytest.mark.parametrize(
    ("has", "num", "parts", "workers", "threads"),
    [
        (PAIR, 2, ["0", "1"], 1, 1),
        ({"cores": ["0-1"]}, 2, ["0", "1"], 1, 1),  # two threads of one core
        ({**SIXTEEN, "quota": 6}, 2, ["0-7", "8-15"], 2, 3),
        (LAPTOP, 2, ["0-1,4-5", "2-3,6-7"], 4, 4),
        (LAPTOP, 6, ["0,4", "1,5", "2", "6", "3", "7"], 1, None),
        (TWO_NODES, 4, ["0-1,8-9", "4-5,12-13", "2-3,10-11", "6-7,14-15"], 4, 4),
        ({**TWO_NODES, "chosen": "0-2,4-6"}, 3, ["0-1", "4-5", "2,6"], 2, 2),
        ({**TWO_NODES, "allowed": "1-3,12"}, 2, ["1-2", "3,12"], 2, 2),
    ],
)
def test_cpu_learners_have_parts_of_their_own(
    has: dict[str, Any], num: int, parts: list[str], workers: int, threads: int | None, topology: Any
) -> None:
    """CPU learners get separate parts of the machine, with workers and threads that fit the part."""
    whole = topology(**has)
    assert parts_of(whole, [None] * num) == parts
    for plan, part in zip(make_plans(whole, 16, gpu_nodes=[None] * num), parts, strict=True):
        assert plan.server_cpus == tuple(parse_cpus(part))  # for torch's threads
        assert {*workers_of(plan)} <= {*plan.server_cpus}
        assert len(plan.worker_cpus) in ([workers] if num != 6 else [1, 2])
        assert threads in (plan.learning_threads, None)


def test_any_machine_is_divided_evenly() -> None:
    """Any machine is divided evenly, and each learner gets cores of its own node first."""
    draw = random.Random(0)
    for _ in range(300):
        nodes = tuple(draw.choices(range(draw.randint(1, 4)), k=draw.randint(2, 30)))
        topology = CpuTopology(tuple((n, n + 100) for n in range(len(nodes))), nodes, 2 * len(nodes))
        gpu_nodes = draw.choices(sorted({*nodes}), k=draw.randint(2, len(nodes)))
        parts = divide(topology, gpu_nodes)
        assert sorted(core for part in parts for core in part.cores) == list(topology.cores)
        sizes = [len(part.cores) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part, home in zip(parts, gpu_nodes, strict=True):
            assert part.nodes == tuple(nodes[core[0]] for core in part.cores)
            at_home = [node == home for node in part.nodes]
            assert at_home == sorted(at_home, reverse=True)
            for other, elsewhere in zip(parts, gpu_nodes, strict=True):
                assert all(at_home) or elsewhere == home or home not in other.nodes


def test_a_single_learner_has_the_whole_machine(topology: Any) -> None:
    """A single learner has the same plan as in a run that cannot have several."""
    for has in (DGX_1, LAPTOP, PAIR, {**SIXTEEN, "quota": 4}, {**TWO_NODES, "chosen": "4-7"}):
        whole = topology(**has)
        assert make_plans(whole, 16, gpu_nodes=[None]) == (make_plan(whole, 16),)
        (plan,) = make_plans(whole, 12, 32, gpu_nodes=[1], on_gpu=True, sampling_threads=3, learning_threads=4)
        expected = make_plan(whole, 12, 32, on_gpu=True, gpu_node=1, sampling_threads=3, learning_threads=4)
        assert plan == expected
        assert show_plans(["cuda:0"], [plan]) == expected.lines()
    (plan,) = make_plans(topology(**SIXTEEN), 16, gpu_nodes=[None], on_gpu=True)
    assert (plan.server_cpus, workers_of(plan)) == ((0,), [*range(1, 16)])  # one of them has two environments


@pytest.mark.parametrize(
    ("has", "num", "message"),
    [
        (PAIR, 3, r"learners=3 need a logical CPU each, but there are 2 \(of 0-1\); use no more than 2 learners, or"),
        ({**SIXTEEN, "quota": 2}, 4, r"here are 2 \(of 0-15 with a quota of 2\); use no more than 2 learners"),
        ({**SIXTEEN, "allowed": "5"}, 2, r"here are 1 \(of 5\); use no more than 1 learner, or --share-processors"),
    ],
)
def test_more_learners_than_logical_cpus(has: dict[str, Any], num: int, message: str, topology: Any) -> None:
    """More learners than logical CPUs are refused, unless sharing is asked for; then one warning says so."""
    whole = topology(**has)
    with pytest.raises(UsageError, match=message):
        make_plans(whole, 8, gpu_nodes=[None] * num)
    first, *others = make_plans(whole, 8, gpu_nodes=[None] * num, share=True)
    cpus = f"{whole.num_busy} logical CPU{'s' if whole.num_busy > 1 else ''}"
    assert first.warnings[0].startswith(f"learners={num} share {cpus}; {whole.num_busy} learner")
    assert len(first.warnings) == 1 and all(plan.warnings == () for plan in others)
    for plan in (first, *others):
        assert len(plan.worker_cpus) == 1 and plan.learning_threads == 1
        assert plan.server_cpus == plan.topology.cpus


def test_shared_logical_cpus_are_taken_in_turn(topology: Any) -> None:
    """Shared logical CPUs are taken in turn, near each learner's GPU."""
    assert parts_of(topology(**PAIR), [None] * 5, share=True) == ["0", "1", "0", "1", "0"]
    assert parts_of(topology(["0,2", "1,3"], ["0,2", "1,3"]), [1, 1, 1, 0, 0], share=True) == ["1", "3", "1", "0", "2"]
    assert parts_of(topology(**PAIR), [None] * 2, share=True) == ["0", "1"]
    assert parts_of(topology(**SIXTEEN, quota=2), [None] * 4, share=True) == ["0-3", "4-7", "8-11", "12-15"]


def test_a_slurm_job_is_divided(topology: Any) -> None:
    """Learners of a Slurm step divide its logical CPUs and its share of time."""
    step = "job_7/step_0/user/task_0"
    whole = topology(**DGX_1, allowed="10-19,50-59,30-33", quota=12, group=step)
    plans = make_plans(whole, 16, gpu_nodes=[0, 1], on_gpu=True)
    assert [show_cpus(plan.topology.cpus) for plan in plans] == ["10-16,50-56", "17-19,30-33,57-59"]
    assert [(plan.topology.quota, len(plan.worker_cpus)) for plan in plans] == [(6, 5), (6, 5)]
    assert [plan.server_cpus for plan in plans] == [(10, 50), (30,)]


def test_warnings_count_the_whole_run(topology: Any) -> None:
    wide = topology(EIGHT)
    (text,) = make_plans(wide, 4, gpu_nodes=[None, None])[0].warnings
    assert text == "envs=8 keep 8 of 16 logical CPUs busy; --envs 32 would use them all"
    assert [len(plan.worker_cpus) for plan in make_plans(wide, 16, gpu_nodes=[None, None])] == [8, 8]
    (text,) = make_plans(wide, 64, 16, gpu_nodes=[None, None])[0].warnings
    assert text == "workers=32 share 16 logical CPUs; --workers 16 would have one each"
    (text,) = make_plans(wide, 2, gpu_nodes=[None] * 3)[0].warnings  # parts of 6, 6 and 4 logical CPUs
    assert text == "envs=6 keep 6 of 16 logical CPUs busy; --envs 24 would use 12"
    assert [default_workers(8, num) for num in (6, 6, 4)] == [4, 4, 4]


def test_each_learner_has_a_line(topology: Any) -> None:
    """Each learner has one line with its device, node, server, workers and environments."""
    devices = [f"cuda:{gpu}" for gpu in range(8)]
    lines = show_plans(devices, make_plans(topology(**DGX_1), 16, gpu_nodes=DGX_1_GPUS, on_gpu=True))
    assert lines[7] == (
        "learner 7   cuda:7  node 1: server on 35,75, reserved for it; 8 workers on 36-39,76-79; 16 environments"
    )
    lines = show_plans(devices, make_plans(topology(**DGX_A100), 32, gpu_nodes=DGX_A100_GPUS, on_gpu=True))
    assert lines[2].startswith(
        "learner 2   cuda:2  nodes 0-1: server on 16,144, reserved for it; 30 workers on 0-7,17-23,"
    )
    assert show_plans(["cpu"] * 2, make_plans(topology(**PAIR), 1, 0, gpu_nodes=[None] * 2)) == [
        "learner 0   cpu  node 0: server on 0; no workers; 1 environment; torch threads: 1 sampling, 1 learning",
        "learner 1   cpu  node 0: server on 1; no workers; 1 environment; torch threads: 1 sampling, 1 learning",
    ]
    whole = CpuTopology(((0,), (1,)), (0, 0), 2, can_pin=False)
    assert show_plans(["cpu"] * 2, make_plans(whole, 2, gpu_nodes=[None] * 2)) == [
        f"learner {rank}   cpu  node 0: server not pinned; 1 worker not pinned; 2 environments; "
        "torch threads: 1 sampling, 1 learning"
        for rank in range(2)
    ]
