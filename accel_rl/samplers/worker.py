"""A simulator process: steps its environments whenever their actions are ready. Imports no torch.

The environments are in two groups, and a worker has some of each (or all of one), so that it can step the one while the
other waits for its actions. For each group, one worker and the action server agree on this, and on nothing else:

    server                                worker
    actions_ready.announce()      ->      begins a rollout
                                  <-      obs_ready.announce()          row 0 may be read
    writes action[0]
    actions_ready.announce()      ->      steps each environment        T times
                                  <-      obs_ready.announce()          row t + 1 may be read

so a worker announces T + 1 times and is answered T times per rollout. A countdown makes the last of a group's workers
wake the server. All of a group's workers wait for the same signal, so that one system call wakes them; there are two
such signals, used in turn, so that a quick worker can't take what is meant for a slow one. Between rollouts the server
may send messages over the control connection, each of which is answered; its end of file says that the server is gone.
A worker may send warnings over it at any time.
"""

import contextlib
import logging
import os
import random
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from accel_rl.envs.batch_simulator import BatchConfig, BatchSimulator, select_envs
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.shared_memory import Layout, SharedArrays, Signal, poller
from accel_rl.hardware.signals import leave_signals_to_parent

# Columns of a worker's row in the status array, which outlives the worker; ANNOUNCED is group 0's, group 1's follows.
CURRENT_ENV, HEARTBEAT, WAITED_NS, ANNOUNCED = range(4)
NUM_GROUPS = 2
# Before it sleeps in a rollout, a worker offers its processor to others again and again for so long: actions are mostly
# there by then, and to wake a processor that sleeps takes tens of microseconds. On 2 cores, this was worth 2 % of the
# simulation limit with 8 environments per core, and 4 % with 2.
SPIN_NS = 200_000

Share = tuple[int, int]
"""First environment and number of environments of one worker in one group."""


@dataclass(frozen=True)
class EnvArraysSetup:
    """Where one stage (training, or evaluation) keeps its arrays, and which columns are this worker's in each group."""

    layout: Layout
    fd: int
    shares: tuple[Share, Share]
    window: int


@dataclass(frozen=True)
class GroupSignals:
    """How the workers of a group and the server wake each other."""

    obs_ready: Signal
    countdown: Signal  # one less than the workers that still have to announce the next row
    actions_ready: tuple[Signal, Signal]

    def all(self) -> list[Signal]:
        return [self.obs_ready, self.countdown, *self.actions_ready]


@dataclass(frozen=True)
class WorkerSetup:
    """The first message to a worker."""

    sys_path: list[str]
    index: int
    cpu: int | None
    batch: BatchConfig
    train: EnvArraysSetup
    evaluation: EnvArraysSetup
    status_layout: Layout
    status_fd: int
    signals: tuple[GroupSignals, GroupSignals]
    turns: tuple[int, int] = (0, 0)  # which of its two signals each group waits for
    # In place of a worker that died: its environments start at once, in an evaluation under way as well.
    replaces: bool = False
    evaluation_role: int | None = None


class Worker:
    """The environments of one process, of the training stage and, while it lasts, of an evaluation."""

    def __init__(self, setup: WorkerSetup, control: "Connection[Any, Any]"):
        self._setup, self._control = setup, control
        status = SharedArrays(setup.status_layout, setup.status_fd).arrays["status"][setup.index]
        self._status = memoryview(status)  # quicker to write to than an array
        self._heartbeats, self._waited_ns = int(status[HEARTBEAT]), int(status[WAITED_NS])
        self._actions_ready = [signals.actions_ready for signals in setup.signals]
        self._turns = list(setup.turns)
        self._polls: dict[tuple[int, ...], Any] = {}
        self._train = self._active = self._build(setup.train, setup.batch)
        self._next_row = [0] * NUM_GROUPS  # that each group is to announce; 0: it is between two rollouts
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
        """Environments may have something of their own to clean up."""
        for batch in {*self._train.values(), *self._active.values()}:
            with contextlib.suppress(Exception):
                batch.close()

    def _wait(self) -> int | None:
        """The group whose actions are ready, the one that is behind if both are; None if there is a message to read."""
        if (group := self._take_actions()) is not None:
            return group
        start = time.perf_counter_ns()
        ready = []
        in_rollout = any(self._next_row)
        deadline = start + SPIN_NS if in_rollout else start
        while (group := self._take_actions()) is None and self._control.fileno() not in ready:
            if time.perf_counter_ns() < deadline:
                os.sched_yield()
            else:
                ready = [fd for fd, _ in self._poll().poll()]
        if in_rollout:
            self._waited_ns += time.perf_counter_ns() - start
            self._status[WAITED_NS] = self._waited_ns
        return group

    def _take_actions(self) -> int | None:
        behind = int(self._next_row[1] < self._next_row[0])
        for group in (behind, 1 - behind):
            if group in self._active and self._actions_ready[group][self._turns[group]].take():
                self._turns[group] = 1 - self._turns[group]
                return group
        return None

    def _poll(self) -> Any:
        turns = tuple(self._turns)
        if turns not in self._polls:
            signals = [self._actions_ready[group][turns[group]] for group in self._active]
            self._polls[turns] = poller(self._control.fileno(), *(signal.fd for signal in signals))
        return self._polls[turns]

    def _advance(self, group: int) -> None:
        """Writes the group's next row."""
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
        signals = self._setup.signals[group]
        if not signals.countdown.take():
            signals.obs_ready.announce()
        self._status[ANNOUNCED + group] += 1  # last: what is counted was announced, however suddenly this process ends

    def _answer(self, request: str, argument: Any) -> Any:
        if request == "start":  # a message of its own, since a resumed run sets states instead
            return self._start(self._train)
        if request == "get_state":
            return [state for batch in self._train.values() for state in batch.get_state()]
        if request == "set_state":
            return self._set_state(argument)
        if request == "open_evaluation":
            return self._open_evaluation(argument)
        assert request == "close_evaluation" and self._active is not self._train
        for batch in self._active.values():
            batch.close()
        self._active, self._polls = self._train, {}
        return None

    def _start(self, batches: dict[int, BatchSimulator]) -> None:
        for batch in batches.values():
            batch.start()

    def _set_state(self, states: list[dict[str, Any]]) -> list[int]:
        restarted = []
        for batch in self._train.values():
            restarted += batch.set_state(states[: batch.num_envs])
            states = states[batch.num_envs :]
        return restarted

    def _open_evaluation(self, role: int) -> None:
        self._active, self._polls = self._build(self._setup.evaluation, self._setup.batch.for_evaluation(role)), {}
        self._start(self._active)

    def _build(self, stage: EnvArraysSetup, config: BatchConfig) -> dict[int, BatchSimulator]:
        """The environments of each group that this worker has some of."""
        arrays = SharedArrays(stage.layout, stage.fd).arrays
        batches = {}
        for group, (first_env, num_envs) in enumerate(stage.shares):
            if num_envs:
                own = select_envs(arrays, slice(first_env, first_env + num_envs), stage.window)
                batches[group] = BatchSimulator(config, own, first_env, self._heartbeat)
        return batches

    def _heartbeat(self, env: int) -> None:
        self._heartbeats += 1
        self._status[CURRENT_ENV] = env
        self._status[HEARTBEAT] = self._heartbeats


class _SendWarnings(logging.Handler):
    """Passes the framework's warnings on to the server, which has the log."""

    def __init__(self, control: "Connection[Any, Any]"):
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        self._control.send(("warning", record.getMessage()))


def work(setup: WorkerSetup, control: "Connection[Any, Any]") -> None:
    """A worker's life, in a process that was forked for it."""
    leave_signals_to_parent()
    random.seed()  # what was forked with the process must not be the same in all of them
    np.random.seed()
    logging.getLogger("accel_rl").addHandler(_SendWarnings(control))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        if setup.cpu is not None:
            os.sched_setaffinity(0, {setup.cpu})
        sys.path[:] = setup.sys_path
        try:
            worker = Worker(setup, control)
            control.send(("done", None))
            try:
                worker.run()
            finally:
                worker.close()
        except UsageError as error:
            control.send(("usage", str(error)))
        except RunError as error:
            control.send(("failed", str(error)))
