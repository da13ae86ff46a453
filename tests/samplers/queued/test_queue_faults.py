"""Tests of a queued sampler whose agents, environments, predictors or trainers fail: its message and its remains.

tests/samplers/test_faults.py tests whole runs."""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from accel_rl.errors import RunError
from accel_rl.processes.pool import SignsOfLife
from accel_rl.samplers.alternating import AlternatingSampler
from accel_rl.samplers.base import GamesToPlay, StepHook
from accel_rl.samplers.queued.agent_pool import AgentPool
from accel_rl.samplers.queued.agent_replay import AgentReplayConfig
from accel_rl.samplers.queued.batches import SegmentBatch
from accel_rl.samplers.queued.slots import Status
from tests.helpers.samplers import closing
from tests.samplers.queued.book import Book, Telling, make_queued, numbered

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in the way of Linux"),
    pytest.mark.multiprocess,
]
slow = pytest.mark.slow

TAKES_OVER = [("raise", 0, 5)]
OTHERS = (("raise", 1, 0), ("kill", 0, 5), ("kill", 1, 0), ("hang", 0, 5))
TAKES_OVER += [pytest.param(*case, marks=slow) for case in OTHERS]


@pytest.mark.parametrize(("how", "at_game", "at_step"), TAKES_OVER)
def test_a_new_environment_takes_over(tmp_path: Path, how: str, at_game: int, at_step: int) -> None:
    """A failed environment is replaced and counted, and no half segment is learned from."""
    once, lengths = tmp_path / "once", (7, -3)
    env = numbered(lengths, how=how, at_game=at_game, at_step=at_step, once=str(once))
    sampler = make_queued(env, restart_on_error=True, env_timeout_s=3 if how == "hang" else 60)
    book = Book(lengths)
    with closing(sampler):
        while sampler.num_restarts == 0:
            book.add(sampler.collect())
        assert once.exists()
        while len({place[0] for place in book.segments}) < 4:  # until the new environment has been learned from
            book.add(sampler.collect())
        book.add_state(sampler.get_state())
        book.check()
        assert sampler.num_restarts == 1


class Failing(Telling):
    """Telling that fails in its n-th act."""

    def __init__(self, n: int):
        super().__init__()
        self.n = [n]

    def __deepcopy__(self, memo: Any) -> "Failing":
        copy = Failing(0)
        copy.n = self.n
        return copy

    def act(self, *arguments: Any) -> Any:
        self.n[0] -= 1
        if self.n[0] == 0:
            raise ValueError("on purpose")
        return super().act(*arguments)


def assert_ends(sampler: Any) -> None:
    """Asserts that the error arrives twice, and that no thread is left; the sampler has not begun yet."""
    num_threads = threading.active_count()
    with closing(sampler):
        for _ in range(2):
            with pytest.raises(ValueError, match="on purpose"):
                collect_for_ever(sampler)
    assert threading.active_count() == num_threads


def collect_for_ever(sampler: Any) -> None:
    while True:
        sampler.collect()


def test_a_policy_that_fails_in_a_predictor() -> None:
    """An error of the policy in a predictor thread ends the run with that error."""
    assert_ends(make_queued(policy=Failing(20), predictors=2))


def test_a_batch_that_fails_in_a_trainer(monkeypatch: Any) -> None:
    """An error in a trainer thread that merges segments ends the run with that error."""
    add, left = SegmentBatch.add, [10]

    def fail(self: Any, *arguments: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise ValueError("on purpose")
        add(self, *arguments)

    monkeypatch.setattr(SegmentBatch, "add", fail)
    assert_ends(make_queued(trainers=2))


def test_hooks_are_refused() -> None:
    """The queued sampler refuses step hooks and names the sampler that has them."""
    sampler = make_queued()
    with closing(sampler):
        with pytest.raises(ValueError, match="use --sampler alternating"):
            sampler.collect(StepHook(lambda t: None))
        with pytest.raises(ValueError, match="use --sampler alternating"):
            sampler.recent(0, 1, slice(None))


def test_pauses_are_left_out_of_what_is_measured(monkeypatch: Any) -> None:
    """The window of adjustment leaves out evaluations and checkpoints, with their writing; rates leave out
    evaluations."""
    pause_s = 0.2
    monkeypatch.setattr(AlternatingSampler, "evaluate", lambda *_: time.sleep(pause_s) or [])
    sampler = make_queued(dynamic_adjustment=True)
    with closing(sampler):
        sampler.collect()
        assert (adjuster := sampler.adjuster) and (window := adjuster._window_start_s)
        rates = sampler._meter._since
        sampler.evaluate(GamesToPlay(1, None, lambda: False), 0, greedy=False)
        assert sampler._meter._since >= rates + pause_s
        sampler.collect()
        assert (later := adjuster._window_start_s) and later >= window + pause_s
        sampler.get_state()
        time.sleep(pause_s)  # the checkpoint is written
        sampler.collect()
        assert adjuster._window_start_s and adjuster._window_start_s >= later + pause_s


def test_no_window_of_adjustment_counts_while_a_replay_fills() -> None:
    """The window of adjustment begins when all replays are full, and again after an agent has been added."""
    replay = AgentReplayConfig(40, 4, ("reward_prediction",), 4, pixel_control_discount=0.9, discount=0.99)
    sampler = make_queued(dynamic_adjustment=True, max_agents=4, replay=replay)
    with closing(sampler):
        adjuster = sampler.adjuster
        assert adjuster
        for num_agents in (3, 4):
            sampler.set_counts(num_agents, 1, 1)
            sampler.collect()
            assert sampler.pool.replays_fill
            begins = [adjuster._window_start_s]
            while sampler.pool.replays_fill:
                sampler.collect()
                begins.append(adjuster._window_start_s)
            assert len(set(begins)) >= len(begins) - 1 > 1
            sampler.collect()
            begin = adjuster._window_start_s
            sampler.collect()
            assert adjuster._window_start_s == begin


def test_a_pause_is_left_out_of_the_waits_of_those_who_waited() -> None:
    """The mean wait of two agents leaves out a pause through which one of them waited."""
    status = np.zeros((3, len(Status)), np.int64)
    pool = AgentPool.__new__(AgentPool)
    pool.arrays, pool._pool = {"status": status}, cast(Any, SimpleNamespace(children={0: None, 2: None}))
    pool._waited_s, pool._waited_ns, pool._excluded_s = 0.0, 0, 0.0
    pool._signs = cast(Any, SimpleNamespace(restart=lambda: None))
    status[0, Status.WAITED_NS] = 4e9
    assert pool.read_waited_s() == 2.0
    status[0, Status.IS_WAITING] = 1
    pool.exclude(10.0)
    status[0, Status.WAITED_NS] += 13e9
    assert pool.read_waited_s() == 3.5
    status[2, Status.WAITED_NS] += 1e9
    assert pool.read_waited_s() == 4.0


def test_an_agent_that_starts_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of an agent that starts counts from its last sign of life, not from the beginning."""
    now_s, status = [0.0], np.zeros((1, len(Status)), np.int64)
    monkeypatch.setattr("accel_rl.processes.pool.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    pool = AgentPool.__new__(AgentPool)
    pool._signs, pool.starting, pool._build_timeout_s = SignsOfLife(status[:, Status.HEARTBEAT]), {0}, 10.0

    def collect(_: Any, agents: Any, __: Any, watch: Any, ___: Any) -> None:
        for _ in range(3):
            now_s[0] += 8.0
            status[0, Status.HEARTBEAT] += 1
            watch([*agents])
        now_s[0] += 11.0
        watch([*agents])

    pool._pool = cast(Any, SimpleNamespace(collect=collect, hang_error=lambda *_: RunError("hangs")))
    with pytest.raises(RunError, match="hangs"):
        pool._collect_replies("done", [0])
    assert now_s[0] == 35.0


def test_threads_end_with_the_sampler() -> None:
    """Threads of predictors and trainers end when counts fall and when the sampler closes."""
    before = threading.active_count()
    sampler = make_queued(predictors=3, trainers=2)
    sampler.collect()
    assert threading.active_count() == before + 5
    sampler.set_counts(3, 1, 1)
    assert threading.active_count() == before + 2
    sampler.close()
    assert threading.active_count() == before
