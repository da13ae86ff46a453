"""Tests of queues between processes and threads, of policy copies, and of the lag of a scripted schedule."""

import multiprocessing
import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.hardware.shared_memory import Semaphore, SharedArrays
from accel_rl.samplers.queued.batches import SegmentBatch, num_columns
from accel_rl.samplers.queued.meter import Meter
from accel_rl.samplers.queued.predictor import PolicyCopies, PredictionServer
from accel_rl.samplers.queued.slots import (
    MAX_AGENTS,
    Ending,
    IndexQueue,
    SlotState,
    Status,
    agents_of,
    request,
    shared_layout,
)
from tests.helpers.samplers import spec_of
from tests.samplers.queued.book import Telling, numbered, value_of

NUM_PRODUCERS = 3


def produce(queue: IndexQueue, producer: int, count: int) -> None:
    """Puts producer * count ... producer * count + count - 1, in pieces."""
    rng, first = random.Random(producer), producer * count
    while first < (producer + 1) * count:
        stop = min(first + rng.choice([1, 1, 1, 2, 30]), (producer + 1) * count)
        queue.put(range(first, stop))
        first = stop


@pytest.mark.multiprocess
def test_a_queue_between_processes_and_threads() -> None:
    """Each number put by a process is taken once, and each producer's numbers in order."""
    count, queue, taken = 10_000, IndexQueue(), list[list[int]]()
    total, num_taken, lock = NUM_PRODUCERS * count, Counter[str](), threading.Lock()

    def consume(seed: int) -> None:
        rng = random.Random(seed)
        while num_taken["all"] < total:
            numbers = queue.get(rng.choice([1, 2, 7, 100])) if queue.wait(0.05) else []
            with lock:
                taken.append([seed, *numbers])
                num_taken["all"] += len(numbers)

    processes = [
        multiprocessing.get_context("fork").Process(target=produce, args=(queue, producer, count))
        for producer in range(NUM_PRODUCERS)
    ]
    consumers = [threading.Thread(target=consume, args=(seed,)) for seed in range(2)]
    for each in (*processes, *consumers):
        each.start()
    for each in (*processes, *consumers):
        each.join(60)
    assert len(queue) == 0 and queue.get(1) == []
    queue.close()
    assert sorted(number for piece in taken for number in piece[1:]) == list(range(total))
    for seed in range(2):
        seen = [number for piece in taken if piece[0] == seed for number in piece[1:]]
        for producer in range(NUM_PRODUCERS):
            own = [number for number in seen if number // count == producer]
            assert own == sorted(own)


def test_requests_of_processes_that_are_gone_are_not_answered() -> None:
    """Requests of an earlier generation are dropped, and the largest numbers fit a record."""
    status = np.zeros((MAX_AGENTS, len(Status)), np.int64)
    for agent, generation in ((0, 1), (5, 7), (MAX_AGENTS - 1, 2**20 - 1), (3, 2**20 + 4)):
        status[agent, Status.GENERATION] = generation
        number = request(agent, generation)
        assert number < 2**31 and agents_of([number, request(agent, generation - 1)], status) == [agent]


def test_actors_never_see_half_an_update() -> None:
    """A policy copy does not change while it acts, and its version is that of its parameters."""
    policy = Telling(num_parameters=50_000)
    copies, stops, seen, errors = PolicyCopies(policy), threading.Event(), Counter[int](), list[BaseException]()
    observation, noise = torch.zeros(1, 3), torch.zeros(1)

    def act() -> None:
        last = 0
        try:
            while not stops.is_set():
                with copies.newest() as copy:
                    number = int(copy.policy.act(observation, noise)[1]["number"])
                    again = int(copy.policy.act(observation, noise)[1]["number"])
                    assert number == again == copy.version >= last
                    last = copy.version
                    seen[last] += 1
        except BaseException as error:
            errors.append(error)

    actors = [threading.Thread(target=act) for _ in range(3)]
    for actor in actors:
        actor.start()
    version = 0
    while (version < 200 or len(seen) < 20) and not errors:
        version += 1
        with torch.no_grad():
            policy.number.fill_(version)
        copies.publish(version)
    stops.set()
    for actor in actors:
        actor.join(60)
    assert not errors, errors
    assert len(copies._others) <= 4 and not any(copy.num_users for copy in copies._others)


def make_server(num_agents: int, horizon: int) -> tuple[PredictionServer, dict[str, Any]]:
    spec = spec_of(numbered())
    arrays = SharedArrays(shared_layout(spec, horizon, 2 * num_agents, num_agents)).arrays
    replies = [Semaphore(one_at_a_time=True) for _ in range(num_agents)]
    generator = torch.Generator().manual_seed(0)
    return PredictionServer(spec, arrays, replies, Telling(), generator, torch.device("cpu")), arrays


def ask(server: PredictionServer, agents: list[int], slots: list[int], row: int, previous: int = -1) -> None:
    """Writes the requests of these agents, and serves them."""
    for agent, slot in zip(agents, slots, strict=True):
        server.arrays["observation"][slot, row] = (agent, slot, row)
        status = server.arrays["status"][agent]
        status[[Status.SLOT, Status.ROW, Status.PREVIOUS, Status.IS_FINAL]] = slot, row, previous, 0
    server.serve(agents)


def test_the_lag_of_a_scripted_schedule() -> None:
    """Versions, policy lags and batch sizes of a scripted schedule are as computed by hand."""
    server, arrays = make_server(num_agents=2, horizon=3)
    batch, meter = SegmentBatch(server.spec, server, 5, torch.device("cpu")), Meter()
    server.copies.publish(0)
    ask(server, [0, 1], [0, 2], 0)  # both act with version 0
    server.copies.publish(1)
    ask(server, [0], [0], 1)
    server.copies.publish(2)
    ask(server, [0, 1], [0, 2], 1)  # agent 0 asks again, and gets a new answer
    ask(server, [0], [0], 2)
    server.copies.publish(4)
    ask(server, [0], [1], 0, previous=0)  # the value after the segment comes with the next one's first action
    for slot, num_steps, ending in ((0, 3, Ending.FULL), (2, 2, Ending.TERMINATED)):
        arrays["num_steps"][slot], arrays["ending"][slot] = num_steps, ending
        arrays["state"][slot] = SlotState.QUEUED
        assert not batch.is_complete
        batch.add(slot, slot // 2)
    assert batch.is_complete and batch.num_segments == 2 and batch.num_steps == 5
    assert num_columns(5, 3) == len(batch.arrays["bootstrap_value"]) == 4
    rollout = batch.rollout(0)
    version = rollout.policy_outputs["version"]
    assert version[:, 0].tolist() == [0, 2, 2] and version[:2, 1].tolist() == [0, 2]
    assert rollout.bootstrap_value is not None
    assert rollout.bootstrap_value[0] == value_of(torch.tensor([0.0, 1.0, 0.0]))
    meter.add(batch, 5, 7, 3)
    found = meter.read(server.counts)
    lags = [5, 3, 3, 5, 3]
    assert found["policy_lag"] == np.mean(lags) and found["policy_lag_max"] == 5
    assert found["policy_lag_95"] == np.percentile(lags, 95)
    assert (found["prediction_queue"], found["training_queue"], found["training_segments"]) == (7, 3, 2)
    assert found["prediction_batch"] == 7 / 5  # seven predictions in five batches
    assert "policy_lag" not in meter.read(server.counts)
