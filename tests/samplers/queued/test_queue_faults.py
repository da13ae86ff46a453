"""Tests of a queued sampler whose agents, environments, predictors or trainers fail: its message and its remains.

tests/samplers/test_faults.py tests whole runs."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from accel_rl.samplers.alternating import AlternatingSampler
from accel_rl.samplers.base import GamesToPlay, StepHook
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


def test_an_evaluation_is_left_out_of_what_is_measured(monkeypatch: Any) -> None:
    """Neither rates nor the agents' waits nor the window of adjustment contain an evaluation."""
    sampler, pause_s = make_queued(dynamic_adjustment=True), 0.3
    monkeypatch.setattr(AlternatingSampler, "evaluate", lambda *_: time.sleep(pause_s) or [])
    with closing(sampler):
        sampler.collect()
        assert sampler.adjuster

        def starts() -> list[float]:
            assert sampler.adjuster and sampler.adjuster._window_start_s
            return [sampler.adjuster._window_start_s, sampler._meter._since, sampler.pool._excluded_s]

        before = starts()
        sampler.evaluate(GamesToPlay(1, None, lambda: False), 0, greedy=False)
        assert all(new - old >= pause_s for old, new in zip(before, starts(), strict=True))
        before = starts()
        sampler.get_state()
        assert starts()[0] > before[0] and starts()[1] == before[1]
        waited_s = sampler.pool.waited_s
        sampler.pool.exclude(1e6)
        sampler.pool.arrays["status"][:, Status.WAITED_NS] += 10**9
        assert sampler.pool.waited_s == waited_s


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
