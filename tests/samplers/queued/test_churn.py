"""Tests that no step is lost or duplicated while agents, predictors and trainers come, go, die and are resumed."""

import os
import pickle
import random
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accel_rl.samplers.queued.sampler import QueuedSampler
from tests.helpers.samplers import closing
from tests.samplers.queued.book import Book, free_tokens, make_queued, numbered

pytestmark = pytest.mark.multiprocess
MAX_AGENTS = 5
NONE = (0, 0, 0)

Change = tuple[int, str, tuple[int, int, int]]
"""The number of batches before it; counts, kill or resume; and its numbers."""


def make(folder: Path | None, **options: Any) -> QueuedSampler:
    env = numbered(folder=str(folder)) if folder else numbered()
    return make_queued(env, restart_on_error=True, max_agents=MAX_AGENTS, **options)


def resumed(sampler: QueuedSampler, **options: Any) -> QueuedSampler:
    """Returns a new sampler that continues from the state of this one, which is closed."""
    state = pickle.loads(pickle.dumps(sampler.get_state()))
    sampler.close()
    sampler = make(None, **options)
    assert sampler.set_state(state) == []
    return sampler


def kill_one(sampler: QueuedSampler, number: int) -> None:
    if playing := sorted(sampler.pool.processes.keys() - sampler.pool.starting):
        os.kill(sampler.pool.processes[playing[number % len(playing)]].pid, signal.SIGKILL)


def finish(sampler: QueuedSampler, book: Book) -> dict[int, int]:
    """Records the segments that have not been learned from yet, and checks the book."""
    book.add_state(sampler.get_state())
    sampler.crew.check()
    return book.check()


def churn(schedule: list[Change], horizon: int, min_training_batch: int, places: int) -> None:
    """Plays a schedule of changes, each after its number of batches."""
    book = Book()
    options: dict[str, Any] = {"training_queue": places, "horizon": horizon, "trainers": 2}
    options |= {"min_training_batch": min_training_batch, "predictors": 2}
    sampler = make(None, **options)
    try:
        for num_batches, what, numbers in schedule:
            for _ in range(num_batches):
                book.add(sampler.collect())
            if what == "counts":
                sampler.set_counts(*numbers)
            elif what == "kill":
                kill_one(sampler, numbers[0])
            else:
                sampler = resumed(sampler, **options)
        for _ in range(10):
            book.add(sampler.collect())
        finish(sampler, book)
        assert book.num_games == book.num_ended > 0
    finally:
        sampler.close()


def test_churn() -> None:
    """Every step arrives once, with the right values, while counts change, a process dies and a run is resumed."""
    churn([(3, "counts", (5, 1, 3)), (2, "kill", (2, 0, 0)), (3, "resume", NONE), (1, "counts", (1, 2, 1))], 4, 6, 1)


counts = st.tuples(st.integers(1, MAX_AGENTS), st.integers(1, 3), st.integers(1, 3))
changes = st.tuples(st.integers(1, 5), st.sampled_from(["counts", "counts", "kill", "resume"]), counts)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(changes, min_size=5, max_size=20),
    st.sampled_from([1, 4, 5]),
    st.sampled_from([1, 6, 17]),
    st.integers(1, 3),
)
def test_any_churn(schedule: list[Change], horizon: int, min_training_batch: int, places: int) -> None:
    """Every step arrives once under any schedule of changes."""
    churn(schedule, horizon, min_training_batch, places)


def test_a_retired_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    """A retired agent hands over all its steps and frees its slots."""
    sampler, book = make(tmp_path), Book()
    with closing(sampler):
        for num_agents in (5, 1, 4, 2):
            sampler.set_counts(num_agents, 1, 1)
            while len(sampler.pool.processes) != num_agents or sampler.pool.starting:
                book.add(sampler.collect())
            for _ in range(8):
                book.add(sampler.collect())
        retired = {int(file.name): int(file.read_text()) for file in tmp_path.iterdir()}
        taken = finish(sampler, book)
        assert {identity: taken.get(identity, 0) for identity in retired} == retired
        assert len(retired) == 6  # nearly always one of them in mid-segment, by chance
        assert sampler.num_restarts == 0
        assert all(free == tokens for free, tokens in free_tokens(sampler))


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_environments_without_a_state_lose_only_what_was_unfinished(deterministic: bool) -> None:
    """A resume with stateless environments drops unfinished segments only, and their slots become free."""
    options = {"deterministic": deterministic, "max_agents": 3, "training_queue": 2}
    env, rng = numbered(forgets=True), random.Random(0)
    sampler = make_queued(env, **options)  # type: ignore[arg-type]
    try:
        for seed in range(4, 10 if deterministic else 6):  # else a restarted environment would draw its old id again
            for _ in range(rng.randrange(1, 5)):
                Book().add(sampler.collect())
            state = sampler.get_state()
            sampler.close()
            sampler = make_queued(env, seed=seed, **options)  # type: ignore[arg-type]
            assert sampler.set_state(state) == [0, 1, 2]
            for _ in range(3):
                Book().add(sampler.collect())
            assert all(free == tokens for free, tokens in free_tokens(sampler))
            states = sampler.pool.arrays["state"].reshape(3, -1)
            assert ((states == 1).sum(1) <= 2).all()  # the current segment, and one that waits for its last value
    finally:
        sampler.close()
