"""Tests of serial and alternating samplers against each other, of their rollouts and of their processes."""

import itertools
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch

from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError
from accel_rl.hardware.placement import divides_evenly, serves_both_groups
from accel_rl.processes import spawning
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from accel_rl.samplers.env_arrays import assign_envs
from tests.helpers.samplers import COUNTING, PONG, TOYS, Echo, assert_equal, closing, make

pytestmark = pytest.mark.multiprocess
slow = pytest.mark.slow

ASSAULT = EnvConfig("assault", options={"max_episode_steps": 9, "noop_max": 3})  # its resets have many outcomes


ARRANGEMENTS = [
    (COUNTING, "wait", 10, 4),  # two workers have three environments, two have two
    # Each worker has environments of both groups, or of one only.
    (COUNTING, "immediate", 8, 2),
    (COUNTING, "wait", 6, 3),
    (COUNTING, "immediate", 4, 4),
    (PONG, "reserve", 4, 2),
    pytest.param(replace(PONG, simulator="ale"), "reserve", 4, 2, marks=slow),
]


@pytest.mark.parametrize(("env", "reset_mode", "num_envs", "num_workers"), ARRANGEMENTS)
def test_alternating_equals_serial(env: EnvConfig, reset_mode: str, num_envs: int, num_workers: int) -> None:
    """Rollouts and evaluations of the alternating sampler equal the serial sampler's."""
    config = SamplerConfig(num_envs=num_envs, horizon=5, num_workers=num_workers)
    batch = {"reset_mode": reset_mode, "decorrelation_steps": 10}
    serial = make(SerialSampler, env, config, **batch)
    alternating = make(AlternatingSampler, env, config, **batch)
    with closing(alternating, serial):
        games = 0
        for index in range(8):
            first, second = serial.collect(), alternating.collect()
            assert_equal(first, second, f"rollout {index}")
            assert alternating.pool.tokens_left() == 0
            games += len(first.games)
        assert games > 0
        assert serial.evaluate(GamesToPlay(5), 0, False) == alternating.evaluate(GamesToPlay(5), 0, False)
        assert_equal(serial.collect(), alternating.collect(), "after an evaluation")


def test_evaluations_leave_nothing_in_workers() -> None:
    """A worker's memory does not grow with the number of evaluations."""
    sampler = make(AlternatingSampler, EnvConfig(f"{TOYS}:Cyclic"), SamplerConfig(2, 5, 1))
    with closing(sampler):
        memory = []
        for index in range(4):
            sampler.evaluate(GamesToPlay(2), index, False)
            (worker,) = sampler.pool.processes
            memory.append(psutil.Process(worker.pid).memory_full_info().uss)
        assert memory[-1] - memory[0] < 2**22


@pytest.mark.parametrize(("num_envs", "num_evaluation_envs"), [(4, 2), (2, 4)])
def test_workers_of_one_group_in_training_or_evaluation_only(num_envs: int, num_evaluation_envs: int) -> None:
    """Rollouts and evaluations stay in step even if a worker serves fewer groups in one of them."""
    config = SamplerConfig(num_envs, 5, 2, num_evaluation_envs=num_evaluation_envs, env_timeout_s=8)
    serial, alternating = (make(kind, COUNTING, config) for kind in (SerialSampler, AlternatingSampler))
    with closing(alternating, serial):
        for num_games in (1, 3, 5, 8, 14):  # odd and even numbers of rollouts
            assert serial.evaluate(GamesToPlay(num_games), 0, False) == alternating.evaluate(
                GamesToPlay(num_games), 0, False
            )
            assert_equal(serial.collect(), alternating.collect(), f"after {num_games} games")


def test_shares_cover_every_environment_once() -> None:
    """Each environment has one worker. Workers have equal shares of both groups, or of one group, where the numbers
    divide. Elsewhere shares differ by one at most, in each group and in total."""
    for num_envs, num_workers in [(envs, workers) for envs in range(2, 66, 2) for workers in range(1, envs + 1)]:
        shares = assign_envs(num_envs, num_workers)
        half = num_envs // 2
        found: list[list[int]] = [[], []]
        for worker in shares:
            nums, is_even = [num for _, num in worker], divides_evenly(num_envs, num_workers)
            assert sum(nums) - num_envs // num_workers in ((0,) if is_even else (0, 1))
            if serves_both_groups(num_envs, num_workers):
                assert nums[0] == nums[1]
            elif is_even:
                assert 0 in nums
            else:
                assert all(half // num_workers <= num <= half // num_workers + 1 for num in nums)
            for group, (first, num) in enumerate(worker):
                found[group] += range(first, first + num)
        assert found == [[*range(half)], [*range(half, num_envs)]], (num_envs, num_workers)


def test_stacks_are_blank_before_the_episode() -> None:
    env = EnvConfig("breakout", options={"noop_max": 0, "max_episode_steps": 7})
    sampler = make(SerialSampler, env, SamplerConfig(2, 5, 2))
    frames: list[list[torch.Tensor]] = [[], []]  # each column's episode so far, kept by hand
    for _ in range(8):
        rollout = sampler.collect()
        stacks = rollout.observations(0, 5)
        for t, column in itertools.product(range(5), range(2)):
            frames[column].append(rollout.observation_rows[3 + t, column].clone())
            blank = torch.zeros_like(frames[column][0])
            expected = torch.stack(([blank] * 3 + frames[column])[-4:])
            assert torch.equal(stacks[t, column], expected), (t, column)
            if rollout.done[t, column]:
                frames[column] = []


def test_final_observation_is_the_whole_last_stack() -> None:
    env = EnvConfig("pong", options={"noop_max": 0, "max_episode_steps": 3, "frame_stack": 4})
    longer = EnvConfig("pong", options={"noop_max": 0, "max_episode_steps": 1000})
    policy = lambda: Echo(1)  # noqa: E731  always NOOP, so that both environments take the same course
    cut = make(SerialSampler, env, SamplerConfig(2, 5, 2), policy())
    whole = make(SerialSampler, longer, SamplerConfig(2, 5, 2), policy())
    cut_rollout, whole_rollout = cut.collect(), whole.collect()
    assert cut_rollout.final_step.tolist() == [2, 2]
    assert torch.equal(cut_rollout.final_observation, whole_rollout.observations(3, 4)[0])


@pytest.mark.parametrize(
    ("env", "reset_mode"),
    [
        *((COUNTING, reset_mode) for reset_mode in ("immediate", "wait")),
        (PONG, "wait"),
        pytest.param(ASSAULT, "reserve", marks=slow),  # tests/envs/test_start_states.py covers one simulator.
    ],
)
def test_state_continues_exactly(env: EnvConfig, reset_mode: str) -> None:
    """A sampler continues exactly from a state, with any number of workers and even before the first rollout."""
    batch = {"reset_mode": reset_mode, "decorrelation_steps": 5}
    # Workers with both groups; none at all; with one group each; one with everything.
    arrangements = [(AlternatingSampler, 2), (SerialSampler, 2), (AlternatingSampler, 4), (AlternatingSampler, 1)]
    arrangements = arrangements if env is COUNTING else arrangements[:2]
    samplers = [make(kind, env, SamplerConfig(4, 5, workers), **batch) for kind, workers in arrangements]
    with closing(*samplers):
        state = pickle.loads(pickle.dumps(samplers[0].get_state()))
        assert not any(sampler.set_state(state) for sampler in samplers[1:])
        first = samplers[0].collect()
        for sampler in samplers[1:]:
            assert_equal(first, sampler.collect(), "the first rollout")
        for _ in range(3):
            samplers[0].collect()
        state = pickle.loads(pickle.dumps(samplers[0].get_state()))
        assert not any(sampler.set_state(state) for sampler in samplers[1:])
        for index in range(3):
            expected = samplers[0].collect()
            for (kind, workers), sampler in zip(arrangements[1:], samplers[1:], strict=True):
                assert_equal(expected, sampler.collect(), f"rollout {index}, {kind.__name__} {workers}")


def test_evaluation_counts_the_first_games_of_each_environment() -> None:
    """An evaluation counts the first games of each environment, so short games have no advantage."""
    env = EnvConfig(f"{TOYS}:Counting", options={"lengths": [2, 50]})
    sampler = make(AlternatingSampler, env, SamplerConfig(4, 5, 2, num_evaluation_envs=4), Echo(1))
    with closing(sampler):
        games = sampler.evaluate(GamesToPlay(8), 0, False)
        assert sorted(game.length for game in games) == [2] * 4 + [50] * 4
        assert len(sampler.evaluate(GamesToPlay(3), 1, False)) == 3


@pytest.mark.parametrize("sampler_class", [SerialSampler, AlternatingSampler])
def test_evaluation_by_steps_counts_the_games_that_have_ended(sampler_class: Any) -> None:
    env = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -5, 6, 50]})
    sampler = make(sampler_class, env, SamplerConfig(4, 5, 2), Echo(1))
    with closing(sampler):
        for num_steps, lengths in ((96, [3, 5, 6]), (100, [3, 5, 6]), (44, [3, 5]), (12, [3]), (4, []), (1, [])):
            games = sampler.evaluate(GamesToPlay(num_steps=num_steps), 0, False)
            assert sorted((game.env, game.length) for game in games) == [(e, n) for e in range(4) for n in lengths]
            assert all(game.score == sum(range(1, game.length + 1)) for game in games)


def test_evaluation_by_steps_is_the_same_for_both_samplers() -> None:
    """An evaluation by steps gives the same games in both samplers and does not change training."""
    config = SamplerConfig(num_envs=4, horizon=5, num_workers=2)
    samplers = [make(sampler_class, COUNTING, config) for sampler_class in (SerialSampler, AlternatingSampler)]
    with closing(*samplers):
        games = [sampler.evaluate(GamesToPlay(num_steps=160), 3, False) for sampler in samplers]
        assert games[0] == games[1] and len(games[0]) >= 8
        assert_equal(*(sampler.collect() for sampler in samplers), "after an evaluation")


@pytest.mark.parametrize("sampler_class", [SerialSampler, AlternatingSampler])
def test_another_policy_is_evaluated(sampler_class: Any) -> None:
    """An evaluation plays the given policy, and training goes on with its own."""
    env = EnvConfig(f"{TOYS}:Counting", options={"lengths": [4]})
    policy, other = Always(0), Always(1)
    sampler = make(sampler_class, env, SamplerConfig(4, 6, 2), policy)
    with closing(sampler):
        for evaluated, reward in ((None, 0), (other, 10), (None, 0), (other, 10)):
            games = sampler.evaluate(GamesToPlay(8), 1, False, evaluated)
            assert [game.score for game in games] == [4 * reward + 1 + 2 + 3 + 4] * 8
            assert not sampler.collect().action.any()


class Always:
    """A policy of one action."""

    state_size = 0

    def __init__(self, action: int):
        self.action = action

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> torch.Tensor:
        return torch.zeros(num_steps, num_envs, device=generator.device)

    def act(self, observation: torch.Tensor, noise: torch.Tensor | None, recurrent_inputs: Any = None) -> Any:
        return torch.full((len(observation),), self.action, device=observation.device), {}, None


def test_workers_are_free_of_torch_pinned_and_light(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker does not load torch, is pinned to its logical CPU and stays light."""
    monkeypatch.setattr(spawning, "subprocess", subprocess)  # not forked from this process, which has torch
    sampler = make(AlternatingSampler, EnvConfig("pong"), SamplerConfig(8, 5, 2))
    with closing(sampler):
        sampler.collect()
        for process in sampler.pool.processes:
            worker = psutil.Process(process.pid)
            maps = {os.path.basename(m.path) for m in worker.memory_maps()} if sys.platform == "linux" else set()
            assert not any("torch" in name for name in maps)
            if sys.platform == "linux":
                assert worker.cpu_affinity() == [process.setup.cpu]
            assert worker.memory_full_info().uss < 120e6 + 4 * 2e6


def test_what_simulator_processes_import_is_free_of_torch() -> None:
    """The modules of a queued sampler's agent, and of the bare processes of the benchmark, do not import torch."""
    code = "import accel_rl.samplers.queued.agent, accel_rl.bench.limit, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_is_left_behind() -> None:
    """A closed sampler leaves no process, descriptor or shared memory."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    num_fds, shm = psutil.Process().num_fds(), set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    for _ in range(3):
        sampler = make(AlternatingSampler, COUNTING, SamplerConfig(4, 3, 2))
        sampler.collect()
        sampler.close()
        del sampler
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
    assert psutil.Process().num_fds() <= num_fds + 1
    if shm:
        assert set(os.listdir("/dev/shm")) == shm


def test_an_announcement_too_many_ends_the_run() -> None:
    sampler = make(AlternatingSampler, COUNTING, SamplerConfig(4, 3, 2))
    with closing(sampler):
        sampler.collect()
        sampler.pool.processes[0].setup.semaphores[1].obs_ready.release()
        with pytest.raises(RunError, match="1 announcements left over"):
            sampler.pool.end()


def test_waits_are_told_from_work() -> None:
    """Time spent waiting for environments counts as env_wait, not as inference."""
    env = EnvConfig(f"{TOYS}:Slow", options={"step_s": 0.1})
    sampler = make(AlternatingSampler, env, SamplerConfig(4, 5, 4))
    with closing(sampler):
        start = time.perf_counter()
        sampler.collect()
        elapsed = time.perf_counter() - start
        assert sampler.seconds["env_wait"] + sampler.seconds["inference"] <= elapsed
        assert sampler.seconds["env_wait"] > 0.25  # Five steps take 0.1 s each.
