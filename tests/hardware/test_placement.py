"""Tests of the logical CPUs that a single learner's processes get, on machines of every shape."""

import os
import sys
from typing import Any

import pytest
import torch

from accel_rl.hardware import placement
from accel_rl.hardware.placement import default_workers, make_plan, make_plans, server_seconds, workers_worth
from accel_rl.samplers.env_arrays import assign_envs
from tests.helpers.machines import EIGHT, TWO_NODES

ONLINE = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]

needs_pinning = pytest.mark.skipif(sys.platform != "linux", reason="processes can't be pinned here")

needs_two = pytest.mark.skipif(len(ONLINE) < 2, reason="a single logical CPU")


# machine, environments, the logical CPU of each worker, the text about CPUs
PLANS: dict[str, tuple[dict[str, Any], int, list[int], str]] = {
    "one logical CPU": ({"cores": ["0"]}, 16, [0], "0 (of 1): 1 core with 1 thread, 1 NUMA node, quota none"),
    "two cores, few environments": ({"cores": ["0", "1"]}, 14, [0], "0-1 (of 2): 2 cores with 1 thread"),
    "two hyperthreads": ({"cores": ["0-1"]}, 16, [0], "0-1 (of 2): 1 core with 2 threads"),
    "siblings side by side": ({"cores": ["0-1", "2-3"]}, 8, [0, 2, 1, 3], "2 cores with 2 threads"),
    "one group each, on sibling threads": ({"cores": EIGHT}, 16, [*range(16)], "8 cores"),
    "nodes take turns": (TWO_NODES, 16, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15], "2 NUMA nodes"),
    "one sibling of some": (
        {"cores": EIGHT, "allowed": "0-2,8,13"},
        20,
        [0, 1, 2, 13, 8],
        "4 cores with 1 or 2 threads",
    ),
    "a node out of bounds": ({**TWO_NODES, "allowed": "4-7"}, 8, [4, 5, 6, 7], "4-7 (of 16): 4 cores with 1 thread"),
    "some offline": ({"cores": ["0", "2,6", "3"]}, 8, [0, 2, 3, 6], "0,2-3,6 (of 4)"),
    "quota": ({"cores": EIGHT, "quota": 1.5}, 16, [0, 1], "quota 1.5"),
    "quota of nearly nothing": ({"cores": EIGHT, "quota": 0.2}, 16, [0], "quota 0.2"),
    "chosen": ({**TWO_NODES, "chosen": "4-5,12"}, 6, [4, 5, 12], "4-5,12 (of 16): 2 cores with 1 or 2 threads"),
}


@pytest.mark.parametrize("name", PLANS)
def test_workers_on_logical_cpus(name: str, topology: Any) -> None:
    """Workers, server and threads get the planned logical CPUs, without a warning."""
    has, num_envs, expected, said = PLANS[name]
    plan = make_plan(topology(**has), num_envs)
    assert list(plan.worker_cpus) == expected
    assert plan.server_cpus == (plan.topology.cpus if "chosen" in has else None)
    assert said in plan.lines()[0]
    assert plan.warnings == ()
    assert plan.learning_threads == plan.topology.num_busy
    of_two = plan.topology.num_busy == 2  # one of two remains for choosing actions
    assert plan.sampling_threads == (1 if of_two else min(2, len(expected)))


def test_workers_that_are_asked_for_are_there(topology: Any) -> None:
    """A user's numbers of workers and threads are kept even on two logical CPUs."""
    plan = make_plan(topology(["0", "1"]), 16, 2, sampling_threads=2)
    assert plan.worker_cpus == (0, 1) and plan.sampling_threads == 2


def test_atari_games_have_one_worker_on_two_cpus(topology: Any) -> None:
    """On two logical CPUs, Atari games get one worker, unless the user asks for more. On four, nothing changes."""
    for num_envs in (8, 64):
        assert make_plan(topology(["0", "1"]), num_envs, is_atari=True).worker_cpus == (0,)
    assert make_plan(topology(["0", "1"]), 16, 2, is_atari=True).worker_cpus == (0, 1)
    (plan,) = make_plans(topology(["0", "1"]), 64, gpu_nodes=[None], is_atari=True)
    assert (plan.worker_cpus, plan.warnings) == ((0,), ())
    four = topology(["0", "1", "2", "3"])
    assert make_plan(four, 16, is_atari=True) == make_plan(four, 16)


def test_each_core_has_both_groups(topology: Any) -> None:
    """Each core has a worker of both groups on its two threads."""
    for has in ({"cores": EIGHT}, TWO_NODES):
        plan = make_plan(topology(**has), num_envs=16)
        groups = [{cpu % 8 for cpu in half if cpu is not None} for half in (plan.worker_cpus[:8], plan.worker_cpus[8:])]
        assert groups == [set(range(8))] * 2
        assert plan.lines()[1] == "workers     16, of 1 environment each: group 0 on 0-7, group 1 on 8-15"
    assert make_plan(topology(EIGHT), 32).lines()[1].endswith("16, of 2 environments each: 1 of each group, on 0-15")


@pytest.mark.parametrize(
    ("has", "node", "server", "workers"),
    [
        ({"cores": ["0", "1", "2"]}, None, None, [0, 1, 2]),  # too few cores to spare one
        ({"cores": ["0", "1", "2", "3"]}, None, (0,), [1, 2, 3]),
        (TWO_NODES, None, (0, 8), [4, 1, 5, 2, 6, 3, 7, 12, 9, 13, 10, 14, 11, 15]),
        (TWO_NODES, 1, (4, 12), [0, 1, 5, 2, 6, 3, 7, 8, 9, 13, 10, 14, 11, 15]),
        (TWO_NODES, 7, (0, 8), [4, 1, 5, 2, 6, 3, 7, 12, 9, 13, 10, 14, 11, 15]),
        ({"cores": EIGHT, "quota": 4}, None, (0, 8), [1, 2, 3]),
        ({"cores": EIGHT, "quota": 2}, None, None, [0, 1]),
    ],
)
def test_beside_a_gpu_the_server_has_a_core(
    has: dict[str, Any], node: int | None, server: Any, workers: list[int], topology: Any
) -> None:
    """With a GPU, the server has its own core if one can be spared."""
    plan = make_plan(topology(**has), 2 * len(workers), on_gpu=True, gpu_node=node)
    assert (plan.server_cpus, list(plan.worker_cpus)) == (server, workers)
    assert (plan.sampling_threads, plan.learning_threads) == (1, 1)
    assert ("reserved for it" in plan.lines()[2]) == (server is not None)


def even(num_cores: int, threads: int) -> list[str]:
    """Returns the cores of a machine whose logical CPUs are numbered thread by thread, as Linux does."""
    return [",".join(str(core + thread * num_cores) for thread in range(threads)) for core in range(num_cores)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("num_cpus", [1, 2, 4, 6, 8, 14, 16, 30, 64])
def test_beside_a_gpu_a_core_is_free_whatever_the_number_of_environments(
    num_cpus: int, threads: int, topology: Any
) -> None:
    """An action server has a core that no worker uses, if its learner has four. All other logical CPUs have a worker as
    long as there are environments. Cases: one, two and eight learners with 16 to 1,024 environments."""
    if num_cpus % threads:
        pytest.skip("no such machine")
    machine = topology(even(num_cpus // threads, threads))
    for num_learners in [n for n in (1, 2, 8) if n <= num_cpus]:
        for num_envs in [envs for envs in (16, 32, 64, 112, 128, 256, 512, 1024) if envs >= 2 * num_learners]:
            for plan in make_plans(machine, num_envs // num_learners, gpu_nodes=[0] * num_learners, on_gpu=True):
                cores, cpus = plan.topology.cores, plan.topology.cpus
                assert plan.server_is_reserved == (len(cores) >= 4)
                free = {*cpus} - ({*plan.server_cpus} if plan.server_is_reserved and plan.server_cpus else set())
                assert {*plan.worker_cpus} <= free
                assert len(plan.worker_cpus) == min(len(free), num_envs // num_learners)
                shares = assign_envs(plan.num_envs, len(plan.worker_cpus))
                assert sum(num for ranges in shares for _, num in ranges) == num_envs // num_learners


def test_uneven_workers_are_said(topology: Any) -> None:
    """The log shows uneven numbers of environments if the server's core leaves 15 logical CPUs for workers."""
    lines = make_plan(topology(even(16, 1)), 64, on_gpu=True).lines()
    assert lines[1] == "workers     15, of 4 or 5 environments each, on 1-15"
    assert lines[2].startswith("server      on 0, reserved for it")


def test_idle_and_shared_cpus_are_reported(topology: Any) -> None:
    """Idle and shared logical CPUs give one warning with the better setting."""
    wide = topology(EIGHT)
    few = make_plan(topology(**TWO_NODES), 4)
    assert list(few.worker_cpus) == [0, 4, 1, 5]
    (text,) = few.warnings
    assert text == "envs=4 keep 4 of 16 logical CPUs busy; --envs 32 would use them all"
    crowded = make_plan(wide, 64, 32)
    assert crowded.warnings == ("workers=32 share 16 logical CPUs; --workers 16 would have one each",)
    assert list(crowded.worker_cpus) == [*range(16), *range(16)]
    assert make_plan(wide, 64, 2).warnings == ()  # as requested
    large = make_plan(topology([f"{n},{n + 64}" for n in range(64)]), 256)
    assert len(large.worker_cpus) == 128 and all(len(line) < 120 for line in large.lines())
    assert (large.sampling_threads, large.learning_threads) == (2, 16)
    alone = make_plan(wide, 16, 0, on_gpu=True)
    assert (alone.worker_cpus, alone.server_cpus, alone.warnings) == ((), None, ())
    assert alone.lines()[1] == "workers     none: environments are stepped in this process"


@pytest.mark.parametrize(
    ("num_envs", "num_cpus", "expected"),
    [(16, 2, 2), (16, 64, 16), (16, 6, 4), (16, 1, 1), (20, 8, 5), (6, 3, 3), (18, 4, 3), (5, 4, 1)],
)
def test_workers_divide_the_environments(num_envs: int, num_cpus: int, expected: int) -> None:
    """The default number of workers divides the environments and uses the logical CPUs."""
    assert default_workers(num_envs, num_cpus) == expected


@pytest.mark.parametrize(
    ("num_envs", "num_cpus", "step_us", "server", "expected"),
    [
        (16, 1, 1000, "", 1),
        (16, 2, 15, "", 1),  # CartPole
        (16, 2, 50, "", 1),  # HalfCheetah
        (16, 2, 270, "", 2),  # Ant
        (16, 2, 100, "", 2),
        (16, 2, 100, "pictures", 1),  # MiniGrid
        (32, 2, 50, "", 2),
        (32, 2, 50, "learns", 1),  # the learner's work leaves enough time
        (8, 2, 15, "learns", 1),
        (8, 2, 1000, "learns", 2),
        (16, 4, 15, "", 1),
        (16, 4, 50, "", 2),  # more would not keep up better with the server
        (16, 4, 1000, "", 4),
        (64, 16, 15, "", 4),
        (64, 16, 1000, "", 16),
        (64, 64, 15, "", 4),
        (64, 64, 100, "", 32),
        (64, 64, 1000, "", 64),
        (256, 64, 15, "", 16),
        (6, 4, 1000, "", 3),  # 4 does not divide 6
        (5, 64, 1000, "", 1),
    ],
)
def test_workers_that_are_worth_it(num_envs: int, num_cpus: int, step_us: float, server: str, expected: int) -> None:
    """Cheap environments get as many workers as keep up with the server, expensive ones one per logical CPU."""
    server_s = server_seconds(sees_pictures=server == "pictures", learns_on_step=server == "learns")
    assert workers_worth(num_envs, num_cpus, step_us * 1e-6, server_s) == expected


def test_dearer_environments_never_have_fewer_workers() -> None:
    """The number of workers grows with the cost of a step, up to the default."""
    for num_envs, num_cpus in ((8, 2), (16, 2), (16, 4), (64, 16), (48, 24), (256, 64), (1024, 128)):
        numbers = [workers_worth(num_envs, num_cpus, 1e-6 * 1.2**power) for power in range(60)]
        assert numbers == sorted(numbers) and numbers[-1] == default_workers(num_envs, num_cpus)


def test_the_cost_of_a_step_decides_the_workers_alone(topology: Any) -> None:
    """A known cost changes only the workers of a plan. It changes nothing if the user sets the workers, with a GPU, or
    with several learners."""
    for cores in (["0", "1"], ["0", "1", "2", "3"]):
        cheap, dear, unknown = (make_plan(topology(cores), 16, step_s=step_s) for step_s in (1e-5, 1e-3, None))
        assert len(cheap.worker_cpus) == 1 and cheap.warnings == () and dear.worker_cpus == unknown.worker_cpus
        threads = {(plan.sampling_threads, plan.learning_threads) for plan in (cheap, dear, unknown)}
        assert len(threads) == 1  # threads decide how sums are rounded
        assert make_plan(topology(cores), 16, 1).sampling_threads == cheap.sampling_threads  # as when it is resumed
        assert cheap.lines()[1] == "workers     1, of 16 environments: 8 of each group, on 0; a step of one takes 10 us"
        for options in ({"num_workers": 2}, {"on_gpu": True}):
            assert make_plan(topology(cores), 16, **options, step_s=1e-5) == make_plan(topology(cores), 16, **options)
    several = [make_plans(topology(EIGHT), 32, gpu_nodes=[None] * 2, step_s=step_s) for step_s in (1e-5, None)]
    assert several[0] == several[1]
    (few,) = make_plan(topology(EIGHT), 4, step_s=1e-2).warnings
    assert few == "envs=4 keep 4 of 16 logical CPUs busy; --envs 32 would use them all"


@needs_pinning
@needs_two
def test_the_server_is_pinned_for_the_run_only() -> None:
    """All threads are pinned during a run, and none after it."""
    everywhere = os.sched_getaffinity(0)
    torch.set_num_threads(2)
    torch.rand(300, 300) @ torch.rand(300, 300)
    with placement.pinned((ONLINE[-1],)):
        assert all(os.sched_getaffinity(int(thread)) == {ONLINE[-1]} for thread in os.listdir("/proc/self/task"))
    assert all(os.sched_getaffinity(int(thread)) == everywhere for thread in os.listdir("/proc/self/task"))
    with placement.pinned(None):
        assert os.sched_getaffinity(0) == everywhere
