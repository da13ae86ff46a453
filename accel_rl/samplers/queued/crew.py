"""Runs the threads of a queued sampler: predictors serve the agents' requests, trainers merge segments into batches.

`queued` holds numbers of slots that have left the training queue already; trainers take these first. A batch is open
(empty, or partly filled), then in a trainer's hands, then complete, then with the learner, and then open again.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import torch

from accel_rl.samplers.queued.agent_pool import AgentPool
from accel_rl.samplers.queued.batches import SegmentBatch
from accel_rl.samplers.queued.predictor import PredictionServer
from accel_rl.samplers.queued.slots import agents_of, wait_for_any

POLL_S = 0.1  # a waiting thread checks this often whether it must stop


class Crew:
    """The predictors and trainers; there are none before `set_numbers`.

    new_batch: makes an empty batch. prediction_batch: the most requests served at once. threads: torch's threads in
    each predictor. `wait_for_batch` raises the first error of a thread."""

    def __init__(
        self,
        pool: AgentPool,
        server: PredictionServer,
        new_batch: Callable[[], SegmentBatch],
        prediction_batch: int,
        threads: int,
    ):
        self._pool, self._server, self._new_batch = pool, server, new_batch
        self._prediction_batch, self._threads = prediction_batch, threads
        self._held: list[int] = []
        self.queued: deque[int] = deque()
        self.complete: deque[SegmentBatch] = deque()
        self._open = deque([new_batch()])  # partly filled ones first; there is one batch more than trainers
        self._num_batches = 1
        self._filled: dict[int, SegmentBatch] = {}  # batches that trainers are filling, by thread id
        self._changed = threading.Condition()  # guards all of the above
        self.gate = Gate()  # for trainers, and for predictors that choose actions
        self.auxiliary_gate = Gate()  # for the other predictors: agents may still draw for auxiliary tasks
        self._predictors: list[Loop] = []
        self._trainers: list[Loop] = []
        self._auxiliary_predictors: dict[str, list[Loop]] = {task: [] for task in pool.auxiliary}
        self._error: BaseException | None = None

    # ---- threads ----

    def set_numbers(self, num_predictors: int, num_trainers: int) -> None:
        """Starts or ends predictors (of each kind) and trainers until there are this many."""
        gone = self._resize(self._predictors, num_predictors, "predictor", self._predict)
        for task, loops in self._auxiliary_predictors.items():
            work = partial(self._predict_auxiliary, task)
            gone += self._resize(loops, num_predictors, f"{task} predictor", work)
        gone += self._resize(self._trainers, num_trainers, "trainer", self._train)
        for loop in gone:
            loop.stop()
        for loop in gone:
            loop.join()
        with self._changed:
            for loop in gone:
                if batch := self._filled.pop(loop.ident or 0, None):
                    self._open.appendleft(batch)
            while self._num_batches <= num_trainers:
                self._open.append(self._new_batch())
                self._num_batches += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[list[int]]:
        """Pauses all threads; yields the slots whose segments are not copied yet."""
        with self.gate.closed(), self.auxiliary_gate.closed():
            yield self.take_segments()

    def close(self) -> None:
        """Ends all threads."""
        self._fail(RuntimeError("the sampler is closed"))
        self.set_numbers(0, 0)

    def _resize(self, loops: "list[Loop]", number: int, name: str, work: Callable[[], None]) -> "list[Loop]":
        """Starts loops until there are `number`; removes and returns those beyond it."""
        while len(loops) < number:
            loops.append(Loop(name, work, self._fail))
        gone = loops[number:]
        del loops[number:]
        return gone

    def _fail(self, error: BaseException) -> None:
        """Keeps a thread's exception for the learner."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _predict(self) -> None:
        """Serves waiting requests, at most prediction_batch: a predictor's work."""
        self._set_torch_threads()
        if self._pool.predictions.wait(POLL_S):
            with self.gate.working():
                requests = self._pool.predictions.get(self._prediction_batch)
                self.serve(agents_of(requests, self._pool.arrays["status"]))

    def _predict_auxiliary(self, task: str) -> None:
        """Serves the waiting requests of an auxiliary task."""
        self._set_torch_threads()
        if self._pool.auxiliary[task].wait(POLL_S):
            with self.auxiliary_gate.working():
                self.serve_auxiliary(task, self._prediction_batch)

    def _set_torch_threads(self) -> None:
        """Sets how many of torch's threads this thread uses."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _train(self) -> None:
        """Copies the next segment into this trainer's batch: a trainer's work."""
        me = threading.get_ident()
        batch = self._filled.get(me) or self._take_open(me)
        if batch and (self.queued or self._pool.trainings.wait(POLL_S)):
            with self.gate.working():
                if self.merge(batch):
                    with self._changed:
                        del self._filled[me]
                        self.complete.append(batch)
                        self._changed.notify_all()

    def _take_open(self, me: int) -> SegmentBatch | None:
        """Returns a batch to fill; None if none is open yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._open, POLL_S)
            if self._open:
                self._filled[me] = self._open.popleft()
            return self._filled.get(me)

    # ---- what threads do, piece by piece ----

    def serve(self, agents: list[int]) -> None:
        """Answers these agents' requests, in batches of at most prediction_batch."""
        for first in range(0, len(agents), self._prediction_batch):
            self._server.serve(agents[first : first + self._prediction_batch])

    def serve_auxiliary(self, task: str, most: int) -> None:
        """Answers at most `most` requests for the values after an auxiliary task's sequences."""
        requests = self._pool.auxiliary[task].get(most)
        if agents := sorted(agents_of(requests, self._pool.arrays["status"])):
            self._server.serve_auxiliary(task, agents)

    def take_segments(self) -> list[int]:
        """Empties the training queue into `queued`; returns all slots whose segments are not copied yet."""
        self.queued.extend(self._pool.trainings.get(len(self._pool.arrays["state"])))
        return list(self.queued)

    def merge(self, batch: SegmentBatch) -> bool:
        """Copies the next segment, if any, into the batch; returns whether the batch is complete now."""
        with self._changed:
            slots = [self.queued.popleft()] if self.queued else self._pool.trainings.get(1)
        for slot in slots:
            batch.add(slot, slot // self._pool.slots_per_agent)
            self._pool.release_slot(slot)
        return batch.is_complete

    # ---- the learner ----

    def check(self) -> None:
        """Raises the first error of a thread."""
        if self._error:
            raise self._error

    def wait_for_batch(self, timeout_s: float) -> SegmentBatch | None:
        """Returns the next complete batch; None if there is none within timeout_s."""
        with self._changed:
            self._changed.wait_for(lambda: self.complete or self._error, timeout_s)
            self.check()
            return self.complete.popleft() if self.complete else None

    def fill_in_rounds(self, watch: Callable[[], None]) -> SegmentBatch:
        """Returns the next batch, without any thread.

        A round waits for the requests of all agents, merges the segments that they have handed over, and serves the
        requests; both in the order of the agents' numbers. watch: called repeatedly while it waits."""
        pool, batch = self._pool, self._open.popleft()
        while True:
            while len(self._held) < len(pool.processes):
                watch()
                wait_for_any([pool.predictions, *pool.auxiliary.values()], POLL_S)
                for task in pool.auxiliary:
                    self.serve_auxiliary(task, 1)  # one by one: the rounding of larger batches depends on time
                self._held += pool.predictions.get(pool.max_agents)
            self.queued.extend(sorted(pool.trainings.get(len(pool.arrays["state"]))))
            while self.queued:
                if self.merge(batch):
                    return batch
            agents = sorted(agents_of(self._held, pool.arrays["status"]))
            self._held.clear()
            self.serve(agents)

    def reuse(self, batch: SegmentBatch) -> None:
        """Opens a batch that the learner is done with; drops it if there are fewer trainers now."""
        batch.clear()
        with self._changed:
            if self._num_batches > len(self._trainers) + 1:
                self._num_batches -= 1
            else:
                self._open.append(batch)
            self._changed.notify_all()

    def partly_filled(self) -> list[SegmentBatch]:
        """Returns the batches that are neither empty nor complete, while threads are paused."""
        with self._changed:
            return [batch for batch in (*self._filled.values(), *self._open) if batch.num_segments]

    def restore(self, complete: list[SegmentBatch], partly_filled: list[SegmentBatch]) -> None:
        """Adds the batches of a checkpoint, before the first thread starts."""
        self.complete.extend(complete)
        self._open.extendleft(reversed(partly_filled))
        self._num_batches += len(complete) + len(partly_filled)


class Gate:
    """A gate that lets threads work while it is open. `closed` waits until no thread works."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open, self._num_working = True, 0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Waits until the gate is open; `closed` waits for the end of this block."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_open)
            self._num_working += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_working -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Closes the gate for a while."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._num_working)
        try:
            yield
        finally:
            with self._changed:
                self._is_open = True
                self._changed.notify_all()


class Loop(threading.Thread):
    """A thread that calls work() repeatedly, until `stop` or the first exception, which it passes to on_error."""

    def __init__(self, name: str, work: Callable[[], None], on_error: Callable[[BaseException], None]):
        super().__init__(name=name, daemon=True)
        self._work, self._on_error = work, on_error
        self._stops = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stops.is_set():
                self._work()
        except BaseException as error:
            self._on_error(error)

    def stop(self) -> None:
        """Asks the thread to end after its current piece of work."""
        self._stops.set()
