"""Tests of the central store between real processes: reads equal writes, and no process waits for a dead one."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_rl.errors import UsageError
from accel_rl.updates.optimizers import Adam
from accel_rl.updates.parameter_store import CentralStore
from tests.updates.store_process import Process, check, fill, go_around, hammer, hold

SIZE = 90_001


def make_store(size: int = SIZE, **options: Any) -> CentralStore:
    parameters = torch.zeros(size)
    return CentralStore(
        parameters, Adam().init(parameters), statistics={"mean": torch.zeros(5_000, dtype=torch.float64)}, **options
    )


@pytest.mark.multiprocess
def test_what_is_read_was_written() -> None:
    """Processes that read and write concurrently read only whole updates, and no update is lost."""
    store, seconds = make_store(), 0.5
    processes = [Process(store, hammer, seconds) for _ in range(2)]
    for process in processes:
        process.hear()
    for process in processes:
        process.say()
    go_around(store, seconds, is_writer=False)
    counts = [int(process.finish()) for process in processes]
    for part in (*store.chunks, store.statistics, store.target):
        assert part.version == counts[0] + counts[1]
        check(part)


@pytest.mark.multiprocess
def test_the_dead_hold_no_lock_and_have_written_nothing() -> None:
    """A killed process holds no lock, and its half-written chunk is not read."""
    store = make_store()
    parts = (store.chunks[0], store.statistics, store.target)
    for part in parts:
        fill(part, 1)
        part.publish()
    process = Process(store, hold)
    assert process.hear() == "holding"
    assert [part.acquire(blocking=False) for part in (*parts, store.chunks[1])] == [False, False, False, True]
    assert any((part.staging[name] == 99).any() for part in parts for name in part.staging), "nothing was under way"
    process.kill()
    for part in parts:
        with store.locked(part):
            assert part.version == 1
            check(part)
            fill(part, 2)  # over the dead process's remains
            part.publish()
            check(part)


@pytest.mark.multiprocess
def test_whichever_is_free_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner visits free chunks first, comes back to a locked one, and counts the wait."""
    store = make_store()
    order: list[int] = []
    process = Process(store, hold)
    assert process.hear() == "holding"
    sleep = time.sleep

    def first_sleep(seconds: float) -> None:
        process.say()  # only now does the other process release it
        monkeypatch.setattr(time, "sleep", sleep)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", first_sleep)
    store.for_each_chunk(order.append)
    process.kill()
    assert order == [1, 2, 0]
    assert store.lock_wait_s > 0


@pytest.mark.parametrize("num_chunks", [1, 3, 7])
@pytest.mark.parametrize("locks", [True, False])
def test_whole_vectors_come_back(num_chunks: int, locks: bool) -> None:
    """Vectors written in chunks come back whole, with their dtype."""
    parameters = torch.arange(7, dtype=torch.float64)
    state = {"mean": parameters + 10, "square": parameters + 20, "step": torch.tensor(5.0, dtype=torch.float64)}
    store = CentralStore(parameters, state, num_chunks=num_chunks, locks=locks)
    for factor in (1, 2, 3):
        whole = {"parameters": parameters, **state}
        for name, value in store.read().items():
            assert value.dtype == torch.float64
            assert torch.equal(value, factor * whole[name]), name
        store.write({name: (factor + 1) * value for name, value in whole.items()})
    assert [part.version for part in store.chunks] == [3] * num_chunks
    assert torch.equal(store.target.current["parameters"], parameters)


def test_what_is_read_while_others_write_counts_the_furthest_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that overlaps writes returns the step count of its furthest chunk."""
    store = make_store(size=9)

    def write(chunk: int, count: int) -> None:
        store.chunks[chunk].copy_to_staging()["step"].fill_(count)
        store.chunks[chunk].publish()

    for chunk, count in enumerate((1, 3, 2)):
        write(chunk, count)
    for_each_chunk = store.for_each_chunk

    def and_others_write(visit: Callable[[int], None]) -> None:
        for_each_chunk(visit)
        for count in (8, 9):  # into both buffers
            write(0, count)

    monkeypatch.setattr(store, "for_each_chunk", and_others_write)
    assert store.read()["step"] == 3


def test_an_update_that_fails_is_none() -> None:
    """An exception during a visit leaves the store unchanged and unlocked."""
    store = make_store(size=9)

    def visit(chunk: int) -> None:
        fill(store.chunks[chunk], 7)
        raise KeyError

    with pytest.raises(KeyError):
        store.for_each_chunk(visit)
    for part in store.chunks:
        check(part)
    # Another process has to try, since a process can always relock its own locks.
    acquire = f"import fcntl; fcntl.lockf({store.setup.fd}, fcntl.LOCK_EX | fcntl.LOCK_NB, {len(store.chunks)})"
    assert subprocess.run([sys.executable, "-c", acquire], pass_fds=[store.setup.fd]).returncode == 0


@pytest.mark.parametrize("num_chunks", [0, 10])
def test_chunks_that_cannot_be(num_chunks: int) -> None:
    """A number of chunks below 1 or above the number of parameters is a usage error."""
    with pytest.raises(
        UsageError, match=f"num_chunks={num_chunks} must be at least 1 and at most 9, the number of parameters"
    ):
        make_store(size=9, num_chunks=num_chunks)
