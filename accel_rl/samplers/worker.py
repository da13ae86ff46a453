"""A simulator process: steps its environments whenever their actions are ready. Imports no torch.

The environments form two groups, and a worker has some of each (or only of one), so it can step one group while the
other waits for its actions. For each group, a worker and the action server follow this protocol:

    server                                worker
    actions_ready.release()       ->      begins a rollout
                                  <-      obs_ready.release()           row 0 may be read
    writes action[0]
    actions_ready.release()       ->      steps each environment        T times
                                  <-      obs_ready.release()           row t + 1 may be read

So a worker announces T + 1 rows and receives actions T times per rollout. A countdown makes the last of a group's
workers wake the server. All workers of a group wait for the same semaphore, so one system call wakes them. Two such
semaphores alternate, so a fast worker cannot take a slow one's token. Between rollouts, the server may send requests
over the control connection; the worker answers each. End of file means that the server is gone. A worker may send
warnings at any time.
"""

import contextlib
import gc
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from accel_rl.envs.batches.env_batch import BatchConfig, EnvBatch
from accel_rl.envs.batches.vector_batch import make_batch
from accel_rl.envs.global_generators import only_simulate
from accel_rl.errors import RunError
from accel_rl.hardware.shared_memory import Semaphore, SharedArrays, make_poller
from accel_rl.processes.child import reporting
from accel_rl.samplers.env_arrays import NUM_GROUPS, EnvArrays
from accel_rl.samplers.worker_status import CURRENT_ENV, HEARTBEAT, ROWS_ANNOUNCED, WAITED_NS

# A worker that waits in a rollout yields its CPU repeatedly for this long before it sleeps. Actions usually arrive
# by then, and waking a sleeping CPU takes tens of microseconds. On 2 cores, this gained 2 % of the simulation limit
# with 8 environments per core, and 4 % with 2.
SPIN_NS = 200_000


@dataclass(frozen=True)
class GroupSemaphores:
    """The semaphores by which the workers of a group and the server wake each other.

    With n workers still to announce the next row, countdown holds n - 1 tokens; the worker that finds none announces
    it.
    """

    obs_ready: Semaphore
    countdown: Semaphore
    actions_ready: tuple[Semaphore, Semaphore]

    @classmethod
    def create(cls) -> "GroupSemaphores":
        countdown, even, odd = (Semaphore(one_at_a_time=True) for _ in range(3))
        return cls(Semaphore(), countdown, (even, odd))

    def all(self) -> list[Semaphore]:
        return [self.obs_ready, self.countdown, *self.actions_ready]


@dataclass(frozen=True)
class WorkerSetup:
    """The first message to a worker, with all its settings.

    turns: for each group, the one of its two actions_ready semaphores that it waits for next.
    replaces: the worker replaces one that died, so its environments start at once, as do those of an evaluation in
        progress (evaluation_role).
    """

    index: int
    cpu: int | None
    batch: BatchConfig
    train: EnvArrays
    evaluation: EnvArrays
    status: SharedArrays
    semaphores: tuple[GroupSemaphores, GroupSemaphores]
    turns: tuple[int, int] = (0, 0)
    replaces: bool = False
    evaluation_role: int | None = None


class Worker:
    """The environments of one process, for training and, while one is in progress, for an evaluation."""

    def __init__(self, setup: WorkerSetup, control: "Connection[Any, Any]"):
        self._setup, self._control = setup, control
        status = setup.status.arrays["status"][setup.index]
        self._status = memoryview(status)  # faster to write to than an array
        self._heartbeats, self._waited_ns = int(status[HEARTBEAT]), int(status[WAITED_NS])
        self._actions_ready = [semaphores.actions_ready for semaphores in setup.semaphores]
        self._turns = list(setup.turns)
        self._pollers: dict[tuple[int, ...], Any] = {}
        self._train = self._active = self._build(setup.train, setup.batch)
        self._next_row = [0] * NUM_GROUPS  # the row that each group announces next; 0: between rollouts
        if setup.replaces:
            self._start(self._train)
        if setup.evaluation_role is not None:
            self._open_evaluation(setup.evaluation_role)

    def run(self) -> None:
        """Serves until the server hangs up (EOFError)."""
        while True:
            group = self._wait()
            if group is not None:
                self._advance(group)
            elif any(self._next_row):
                raise RunError(f"a message came in the middle of a rollout: {self._control.recv()}")
            else:
                self._control.send(("done", self._answer(*self._control.recv())))

    def close(self) -> None:
        """Closes the environments, which may have resources to release."""
        for batch in {*self._train.values(), *self._active.values()}:
            with contextlib.suppress(Exception):
                batch.close()

    def _wait(self) -> int | None:
        """Waits for actions or a message.

        Returns the group whose actions are ready (the one that is behind, if both are), or None for a message."""
        if (group := self._acquire_actions()) is not None:
            return group
        start = time.perf_counter_ns()
        ready = []
        in_rollout = any(self._next_row)
        deadline = start + SPIN_NS if in_rollout else start
        while (group := self._acquire_actions()) is None and self._control.fileno() not in ready:
            if time.perf_counter_ns() < deadline:
                os.sched_yield()
            else:
                ready = [fd for fd, _ in self._poller().poll()]
        if in_rollout:
            self._waited_ns += time.perf_counter_ns() - start
            self._status[WAITED_NS] = self._waited_ns
        return group

    def _acquire_actions(self) -> int | None:
        behind = int(self._next_row[1] < self._next_row[0])
        for group in (behind, 1 - behind):
            if group in self._active and self._actions_ready[group][self._turns[group]].try_acquire():
                self._turns[group] = 1 - self._turns[group]
                return group
        return None

    def _poller(self) -> Any:
        turns = tuple(self._turns)
        if turns not in self._pollers:
            semaphores = [self._actions_ready[group][turns[group]] for group in self._active]
            self._pollers[turns] = make_poller(self._control.fileno(), *(semaphore.fd for semaphore in semaphores))
        return self._pollers[turns]

    def _advance(self, group: int) -> None:
        """Writes and announces the group's next row."""
        row, batch = self._next_row[group], self._active[group]
        if row == 0:
            batch.begin()
        else:
            batch.step(row - 1)
        self._announce(group)
        self._next_row[group] = row + 1 if row < batch.horizon else 0
        if not any(self._next_row):
            for batch in self._active.values():
                batch.pause()

    def _announce(self, group: int) -> None:
        semaphores = self._setup.semaphores[group]
        if not semaphores.countdown.try_acquire():
            semaphores.obs_ready.release()
        # Last: every counted row has been announced, however suddenly this process ends.
        self._status[ROWS_ANNOUNCED + group] += 1

    def _answer(self, request: str, argument: Any) -> Any:
        if request == "start":  # a separate request, since a resumed run sets states instead
            return self._start(self._train)
        if request == "get_state":
            return [state for batch in self._train.values() for state in batch.get_state()]
        if request == "set_state":
            return self._set_state(argument)
        if request == "open_evaluation":
            role, self._turns = argument
            if self._active is self._train:  # otherwise this worker has just replaced another one
                self._open_evaluation(role)
            return
        assert request == "close_evaluation"
        # A worker that serves one group only, in training or in the evaluation, has missed the other group's turns.
        self._turns = argument
        if self._active is not self._train:
            self._close_evaluation()

    def _start(self, batches: dict[int, EnvBatch]) -> None:
        for batch in batches.values():
            batch.start()

    def _set_state(self, states: list[dict[str, Any]]) -> list[int]:
        restarted = []
        for batch in self._train.values():
            restarted += batch.set_state(states[: batch.num_envs])
            states = states[batch.num_envs :]
        return restarted

    def _open_evaluation(self, role: int) -> None:
        self._active, self._pollers = self._build(self._setup.evaluation, self._setup.batch.for_evaluation(role)), {}
        self._start(self._active)

    def _close_evaluation(self) -> None:
        while self._active:
            self._active.popitem()[1].close()
        self._active, self._pollers = self._train, {}
        # Environments may be large and contain reference cycles. Python collects these only after thousands of new
        # objects, so a worker would keep the environments of dozens of evaluations.
        gc.collect()

    def _build(self, arrays: EnvArrays, config: BatchConfig) -> dict[int, EnvBatch]:
        """Builds this worker's environments of each group that it serves."""
        index = self._setup.index
        return {
            group: make_batch(config, arrays.arrays_of(index, group), arrays.ranges[index][group][0], self._heartbeat)
            for group in np.flatnonzero(arrays.serves[index]).tolist()
        }

    def _heartbeat(self, env: int) -> None:
        self._heartbeats += 1
        self._status[CURRENT_ENV] = env
        self._status[HEARTBEAT] = self._heartbeats


def main(fd: int) -> None:
    """Runs a worker in a process that was forked for it. fd: file descriptor of the control connection."""
    control: Connection[Any, Any] = Connection(fd)
    with reporting(control):
        only_simulate()
        setup: WorkerSetup = control.recv()
        if setup.cpu is not None:
            with contextlib.suppress(OSError):  # this CPU may have been taken away since the plan was made
                os.sched_setaffinity(0, {setup.cpu})
        worker = Worker(setup, control)
        control.send(("done", None))
        try:
            worker.run()
        finally:
            worker.close()
