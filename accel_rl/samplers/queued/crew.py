"""The threads of a queued sampler, and what passes between them: predictors serve the agents' requests, trainers merge
their segments into batches, and the learner takes these.

What has been taken out of the training queue and waits here comes first: `queued`, numbers of slots. A batch is open
(empty, or partly filled), then filled by a trainer, then complete, and then learned from until it is open again.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from accel_rl.samplers.queued.agent_pool import AgentPool
from accel_rl.samplers.queued.batches import SegmentBatch
from accel_rl.samplers.queued.predictor import PredictionServer
from accel_rl.samplers.queued.slots import agents_of, wait_for_any
from accel_rl.samplers.queued.threads import Gate, Loop

POLL_S = 0.1  # how long a thread waits before it looks whether it is to stop


class Crew:
    """Runs predictors and trainers; none before `set_numbers`.

    new_batch: makes an empty batch. prediction_batch: most requests that are served at once. threads: of torch, in each
    predictor. `wait_for_batch` raises what a thread has raised."""

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
        self._open = deque([new_batch()])  # partly filled ones first; there is one more batch than there are trainers
        self._num_batches = 1
        self._filled: dict[int, SegmentBatch] = {}  # by the trainer's thread
        self._changed = threading.Condition()  # of all these
        self.gate = Gate()  # of trainers and of those predictors that choose actions
        self.auxiliary_gate = Gate()  # of the other predictors: agents can draw for auxiliary tasks
        self._predictors: list[Loop] = []
        self._trainers: list[Loop] = []
        self._auxiliary_predictors: dict[str, list[Loop]] = {task: [] for task in pool.auxiliary}
        self._error: BaseException | None = None

    # ---- threads ----

    def set_numbers(self, num_predictors: int, num_trainers: int) -> None:
        """Starts or ends predictors (of each kind) and trainers until there are so many."""
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

    @contextmanager
    def paused(self) -> Iterator[list[int]]:
        """Pauses all threads; gives the slots that wait to be copied."""
        with self.gate.closed(), self.auxiliary_gate.closed():
            yield self.take_segments()

    def close(self) -> None:
        """Ends all threads."""
        self._fail(RuntimeError("the sampler is closed"))
        self.set_numbers(0, 0)

    def _resize(self, loops: list[Loop], number: int, name: str, work: Callable[[], None]) -> list[Loop]:
        """Starts loops until there are so many; returns those that are too many, which it takes out."""
        while len(loops) < number:
            loops.append(Loop(name, work, self._fail))
        gone = loops[number:]
        del loops[number:]
        return gone

    def _fail(self, error: BaseException) -> None:
        """Hands a thread's exception to the learner."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _predict(self) -> None:
        """Does a predictor's work: serves the requests that there are."""
        self._set_torch_threads()
        if self._pool.predictions.wait(POLL_S):
            with self.gate.working():
                self.serve(self.take_requests())

    def _predict_auxiliary(self, task: str) -> None:
        """Does an auxiliary predictor's work."""
        self._set_torch_threads()
        if self._pool.auxiliary[task].wait(POLL_S):
            with self.auxiliary_gate.working():
                self.serve_auxiliary(task, self._prediction_batch)

    def _set_torch_threads(self) -> None:
        """Sets the number of torch's threads that this thread uses."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _train(self) -> None:
        """Does a trainer's work: copies the next segment into its batch."""
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

    # ---- the pieces of their work ----

    def take_requests(self) -> list[int]:
        """Returns the agents whose requests wait, at most as many as are served at once."""
        return agents_of(self._pool.predictions.get(self._prediction_batch), self._pool.arrays["status"])

    def serve(self, agents: list[int]) -> None:
        """Answers these agents' requests, in batches of the largest size that is allowed."""
        for first in range(0, len(agents), self._prediction_batch):
            self._server.serve(agents[first : first + self._prediction_batch])

    def serve_auxiliary(self, task: str, most: int) -> None:
        """Answers the requests, at most so many, that wait for what follows the sequences of an auxiliary task."""
        requests = self._pool.auxiliary[task].get(most)
        if agents := sorted(agents_of(requests, self._pool.arrays["status"])):
            self._server.serve_auxiliary(task, agents)

    def take_segments(self) -> list[int]:
        """Takes over what waits in the training queue; returns all slots that wait to be copied."""
        self.queued.extend(self._pool.trainings.get(len(self._pool.arrays["state"])))
        return list(self.queued)

    def merge(self, batch: SegmentBatch) -> bool:
        """Copies the next segment, if there is one, into the batch; returns whether that is complete now."""
        with self._changed:
            slots = [self.queued.popleft()] if self.queued else self._pool.trainings.get(1)
        for slot in slots:
            batch.add(slot, slot // self._pool.slots_per_agent)
            self._pool.release_slot(slot)
        return batch.is_complete

    # ---- the learner ----

    def check(self) -> None:
        """Raises what a thread has raised."""
        if self._error:
            raise self._error

    def wait_for_batch(self, timeout_s: float) -> SegmentBatch | None:
        """Returns the next complete batch; None if there is none within timeout_s."""
        with self._changed:
            self._changed.wait_for(lambda: self.complete or self._error, timeout_s)
            self.check()
            return self.complete.popleft() if self.complete else None

    def fill_in_rounds(self, watch: Callable[[], None]) -> SegmentBatch:
        """Returns the next batch without any thread: each round, all agents' requests are waited for, what they have
        handed over is merged in the order of their numbers, and then the requests are served in that order.

        watch: called again and again while there is something to wait for."""
        pool, batch = self._pool, self._open.popleft()
        while True:
            while len(self._held) < len(pool.processes):
                watch()
                wait_for_any([pool.predictions, *pool.auxiliary.values()], POLL_S)
                for task in pool.auxiliary:
                    self.serve_auxiliary(task, 1)  # which requests come together depends on time, and so does rounding
                self._held += pool.predictions.get(pool.max_agents)
            self.queued.extend(sorted(pool.trainings.get(len(pool.arrays["state"]))))
            while self.queued:
                if self.merge(batch):
                    return batch
            agents = sorted(agents_of(self._held, pool.arrays["status"]))
            self._held.clear()
            self.serve(agents)

    def reuse(self, batch: SegmentBatch) -> None:
        """Opens a batch that has been learned from; drops it where trainers have become fewer."""
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
        """Takes over the batches of a checkpoint, before the first thread starts."""
        self.complete.extend(complete)
        self._open.extendleft(reversed(partly_filled))
        self._num_batches += len(complete) + len(partly_filled)
