"""Roll calls, which find the learner that the others wait for in vain. test_learner_faults.py stops real processes."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from accel_rl.distributed import roll_call
from accel_rl.distributed.roll_call import LostError, RollCall
from accel_rl.updates.all_reduce import COLLECTIVES

COUNT = 7  # collectives that this process's learners have reached


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RollCall]]:
    """Makes roll calls of three learners that share a store; their reports go to `call.reported`."""
    monkeypatch.setattr(roll_call, "POLL_S", 0.02)
    monkeypatch.setattr(roll_call, "ANSWER_S", 0.2)
    monkeypatch.setattr(COLLECTIVES, "value", COUNT)
    store, reported = dist.HashStore(), list[Any]()  # type: ignore[attr-defined]

    def end(status: int) -> None:
        raise RuntimeError  # ends only the thread

    monkeypatch.setattr(os, "_exit", end)

    def make(rank: int, timeout_s: float = 60.0, store: Any = store, host: int | None = None) -> RollCall:
        made = RollCall(store, rank, 3, timeout_s, host, reported.append)
        made_calls.enter_context(made)
        return made

    make.store, make.reported = store, reported  # type: ignore[attr-defined]
    with contextlib.ExitStack() as made_calls:
        yield make


def test_a_silent_learner_is_absent(call: Any) -> None:
    """A learner that does not answer is named by the first learner that asks and by all that ask later."""
    learners = [call(0), call(2)]
    assert [each.find_absent() for each in learners] == [[1], [1]]


def test_a_learner_that_is_behind_is_absent(call: Any) -> None:
    """A learner that answers, but has reached fewer collectives, is named by others and not by itself."""
    learners = [call(0), call(2)]
    call.store.set("1/1", str(COUNT - 1))
    assert [each.find_absent() for each in learners] == [[1], [1]]
    assert call(1).find_absent() == []


def test_a_late_learner_accuses_nobody(call: Any) -> None:
    """A learner that is late itself names nobody, and records no absent learner for the others."""
    call.store.set("1/0", str(COUNT + 1))
    call.store.set("1/2", str(COUNT + 1))
    assert call(1).find_absent() == [] and not call.store.check(["absent"])


def test_a_learner_with_a_store_that_does_not_answer_is_absent(call: Any) -> None:
    """If the store itself does not answer, the learner that hosts it is named."""

    class Hanging:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: threading.Event().wait()

    assert call(1, store=Hanging(), host=0).find_absent() == [0]


def test_a_wait_that_the_host_does_not_see_ends_the_process(call: Any) -> None:
    """A learner that reaches no collective within the time-out, as with NCCL, names the absent one and ends."""
    learner, _ = call(0, timeout_s=0.05), call(2)
    learner._thread.join(30)
    (error,) = call.reported
    assert not learner._thread.is_alive() and error.absent == [1]
    assert str(error) == "has lost learner 1, whose own messages may say why: Timed out waiting 0.05 s"


def test_a_long_evaluation_is_no_fault(call: Any) -> None:
    """A waiting learner asks again and again, without an error, while all have reached the same collectives."""
    for number in range(1, 1000):
        call.store.set(f"{number}/1", str(COUNT))
    learner, _ = call(0, timeout_s=0.02), call(2)
    while call.store.add("roll call", 0) < 3:
        time.sleep(0.01)
    assert learner._thread.is_alive() and call.reported == []


def test_only_a_peers_failure_is_named(call: Any) -> None:
    """An error that no peer's failure has caused is raised unchanged."""
    with pytest.raises(RuntimeError, match=r"^mine$"), RollCall(call.store, 0, 1, 60.0, None, print):
        raise RuntimeError("mine")
    lost = "has lost another learner, .*: Timed out waiting 5ms for recv operation"
    with pytest.raises(LostError, match=lost), RollCall(call.store, 0, 1, 60.0, None, print):
        raise RuntimeError("[/gloo/unbound_buffer.cc:81] Timed out waiting 5ms for recv operation. This is typically x")
