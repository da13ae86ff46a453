"""The server's side of the simulator processes: starts them, waits for them, and knows when one is in trouble.

No wait outlives the process waited for: a worker that raises, exits, is killed or hangs ends the wait with a RunError
that names it, or (on_env_error="restart") is replaced.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from accel_rl.envs.batch_simulator import BatchConfig, select_envs, stand_still
from accel_rl.envs.spec import Array
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.placement import default_worker_cpus
from accel_rl.hardware.shared_memory import Layout, SharedArrays, Signal, poller
from accel_rl.samplers.worker import (
    ANNOUNCED,
    CURRENT_ENV,
    HEARTBEAT,
    NUM_GROUPS,
    WAITED_NS,
    EnvArraysSetup,
    GroupSignals,
    Share,
    WorkerSetup,
)
from accel_rl.samplers.worker_launcher import EXIT_PATIENCE_S, Launcher, WorkerProcess

logger = logging.getLogger("accel_rl")

SLICE_S = 0.5  # a wait looks this often whether the workers still make progress
MET_BY_NEW_WORKERS = ("start", "open_evaluation", "close_evaluation")  # requests that need not be repeated to them


def share_out(num_envs: int, num_workers: int) -> list[tuple[Share, Share]]:
    """Each worker's environments in each group: as many of one as of the other, so that it always has something to do.

    Where that doesn't divide, half of the workers have all of a group.
    """
    half = num_envs // NUM_GROUPS
    if half % num_workers == 0:
        k = half // num_workers
        return [((worker * k, k), (half + worker * k, k)) for worker in range(num_workers)]
    k = num_envs // num_workers
    in_group_0 = num_workers // NUM_GROUPS
    return [((w * k, k), (half, 0)) if w < in_group_0 else ((0, 0), (w * k, k)) for w in range(num_workers)]


class EnvArrays:
    """Shared arrays for a number of environments, and which of them each worker has.

    window: rows of each array that are the learner's alone, in front of the rollout's."""

    def __init__(self, layout: Layout, num_workers: int, window: int = 0):
        self.layout, self.window = layout, window
        self.memory = SharedArrays(layout)
        self.arrays = self.memory.arrays
        self.num_envs = self.arrays["reward"].shape[1]
        self.horizon = len(self.arrays["reward"]) - window
        self.shares = share_out(self.num_envs, num_workers)
        # [worker, group]: whether it has environments of that group
        self.has = np.array([[num > 0 for _, num in shares] for shares in self.shares])
        self.members = [np.flatnonzero(self.has[:, group]).tolist() for group in range(NUM_GROUPS)]

    def setup(self, worker: int) -> EnvArraysSetup:
        return EnvArraysSetup(self.layout, self.memory.fd, self.shares[worker], self.window)

    def arrays_of(self, worker: int, group: int) -> dict[str, Array]:
        """The columns of the worker's environments in a group, without the window."""
        first, num = self.shares[worker][group]
        return select_envs(self.arrays, slice(first, first + num), self.window)

    def envs(self, worker: int) -> list[int]:
        """The worker's environments, by index."""
        return [env for first, num in self.shares[worker] for env in range(first, first + num)]


class WorkerPool:
    """num_workers simulator processes, started and with their environments built when this returns.

    cpus: the processor that each is pinned to; None: the default placement. spin: waits do not sleep.
    Raises UsageError or RunError if an environment can't be built, within build_timeout_s of its last sign of life.
    """

    def __init__(
        self,
        num_workers: int,
        batch: BatchConfig,
        train: EnvArrays,
        evaluation: EnvArrays,
        timeout_s: float = 20.0,
        build_timeout_s: float = 60.0,
        cpus: tuple[int | None, ...] | None = None,
        spin: bool = False,
    ):
        self._timeout_s, self._build_timeout_s = timeout_s, build_timeout_s
        self._spin = spin
        self._batch, self._train, self._evaluation = batch, train, evaluation
        self._active = train
        self._members = self._copy_members()
        self._lost: list[int] = []  # workers that have died in this rollout
        self._evaluation_role: int | None = None
        status_layout: Layout = {"status": ((num_workers, ANNOUNCED + NUM_GROUPS), "<i8")}
        self._status_memory = SharedArrays(status_layout)
        self._status = self._status_memory.arrays["status"]
        self._signals = signals = (_group_signals(), _group_signals())
        self._turn = [0] * NUM_GROUPS  # which of its two signals each group waits for
        self._ready = [False] * NUM_GROUPS  # a row has been announced that has not been read
        self._answered = [-1] * NUM_GROUPS  # the step whose actions each group has; -1: none of this rollout
        self._rows_read = [0] * NUM_GROUPS  # of this rollout
        self._rows_before = np.zeros((num_workers, NUM_GROUPS), np.int64)  # announced in all rollouts before this one
        self._begun = False
        self._heartbeats = self._status[:, HEARTBEAT].copy()
        self._alive_at = np.full(num_workers, time.monotonic())  # the last sign of life
        self._woken_at = [time.monotonic()] * NUM_GROUPS  # when there was work to do
        self._next_look = 0.0
        self.num_replaced = 0
        self.processes: list[WorkerProcess] = []
        fds = [memory.fd for memory in (train.memory, evaluation.memory, self._status_memory)]
        fds += [fd for group in signals for each in group.all() for fd in each.fds]
        self._launcher = Launcher(batch, fds)
        try:
            for worker, cpu in enumerate(default_worker_cpus(num_workers) if cpus is None else cpus):
                setup = WorkerSetup(
                    sys_path=[path or os.getcwd() for path in sys.path],
                    index=worker,
                    cpu=cpu,
                    batch=batch,
                    train=train.setup(worker),
                    evaluation=evaluation.setup(worker),
                    status_layout=status_layout,
                    status_fd=self._status_memory.fd,
                    signals=self._signals,
                )
                self.processes.append(self._launcher.launch(setup))
            self._watch()
            self._collect_replies(build_timeout_s)
        except BaseException:
            self.close()
            raise

    # ---- the rollout: begin, then wait and answer T + 1 and T times for each group ----

    def begin(self) -> None:
        """Every worker begins a rollout."""
        self._answered = [-1] * NUM_GROUPS
        self._members = self._copy_members()
        self._begun = True
        for group in range(NUM_GROUPS):
            self._wake(group)

    def wait(self, groups: Sequence[int]) -> int:
        """Waits for every worker of a group; when it returns, that group's newest rows are safe to read.

        Returns the one of these groups that is ready first, the first of them if both are."""
        while True:
            for group in groups:
                if self._ready[group]:
                    self._ready[group] = False
                    self._rows_read[group] += 1
                    return group
            self._take_announcements(self._wait_for_event(self._timeout_s, self._late))

    def answer(self, group: int) -> None:
        """The group's actions are written: its workers step."""
        self._answered[group] += 1
        self._wake(group)

    def _wake(self, group: int) -> None:
        self._woken_at[group] = time.monotonic()
        signals, num_members = self._signals[group], len(self._members[group])
        if not num_members:  # all are lost: nobody else would announce the row
            self._ready[group] = True
            return
        if num_members > 1:
            signals.countdown.announce(num_members - 1)
        signals.actions_ready[self._turn[group]].announce(num_members)
        self._turn[group] = 1 - self._turn[group]

    def end(self) -> None:
        """Ends a rollout: new processes take the place of lost workers.

        Raises RunError if an announcement is left over, which would lose synchronisation."""
        self._begun = False
        if left := self.announcements_left():
            raise RunError(f"out of step with the workers: {left} announcements left over after a rollout")
        self._rows_before += (self._active.horizon + 1) * self._active.has
        self._rows_read = [0] * NUM_GROUPS
        self._replace_lost()

    def announcements_left(self) -> int:
        """Between rollouts, when nobody waits for any: must be 0."""
        return sum(each.take() for group in self._signals for each in group.all()) + sum(self._ready)

    @property
    def waited_s(self) -> float:
        """Seconds in rollouts that a worker has waited for actions so far: the mean of all."""
        return float(self._status[:, WAITED_NS].mean()) / 1e9

    # ---- between rollouts ----

    def request(self, name: str, arguments: list[Any] | None = None, timeout_s: float | None = None) -> list[Any]:
        """Sends one message to every worker; returns their answers, in order."""
        if self._batch.restart_on_error:
            for worker, process in enumerate(self.processes):
                if self._launcher.status(process) is not None:
                    self._lose(worker, self._obituary(worker))
            self._replace_lost()
        self._alive_at[:] = time.monotonic()
        for worker, process in enumerate(self.processes):
            with contextlib.suppress(BrokenPipeError):  # found dead by the wait below
                process.control.send((name, arguments[worker] if arguments else None))
        return self._collect_replies(timeout_s or self._build_timeout_s, name)

    def open_evaluation(self, role: int) -> None:
        """Rollouts are now those of newly built evaluation environments."""
        self._active, self._evaluation_role = self._evaluation, role
        self.request("open_evaluation", [role] * len(self.processes))

    def close_evaluation(self) -> None:
        self._active, self._evaluation_role = self._train, None
        self.request("close_evaluation")

    def close(self) -> None:
        """Ends every worker and gives all shared memory back; a worker that doesn't end at once is killed."""
        self._launcher.close(self.processes, 0.01 if self._begun else EXIT_PATIENCE_S)
        self.processes = []
        for group in self._signals:
            for each in group.all():
                each.close()
        for memory in (self._train.memory, self._evaluation.memory, self._status_memory):
            memory.close()

    # ---- trouble ----

    def _wait_for_event(self, timeout_s: float, late: Callable[[], list[int]]) -> list[int]:
        """The descriptors that are readable, of groups and of control connections. late(): the workers waited for.

        Returns [] after having lost a worker that hung, or raises RunError."""
        while True:
            ready = self._poll.poll(0 if self._spin and self._begun else SLICE_S * 1000)
            now = time.monotonic()
            if now > self._next_look:
                self._next_look = now + SLICE_S
                if hung := self._find_hung(now, timeout_s, late()):
                    self._handle_hang(timeout_s, hung)
                    return []
            if ready:
                return [fd for fd, _ in ready]

    def _find_hung(self, now: float, timeout_s: float, late: list[int]) -> list[int]:
        """The late workers that have shown no sign of life for timeout_s, whatever the others do."""
        moved = self._status[:, HEARTBEAT] != self._heartbeats
        self._alive_at[moved] = now
        self._heartbeats = self._status[:, HEARTBEAT].copy()
        woken_at = np.where(self._active.has, self._woken_at, 0.0).max(axis=1)
        return [worker for worker in late if now - max(self._alive_at[worker], woken_at[worker]) > timeout_s]

    def _copy_members(self) -> list[list[int]]:
        return [list(members) for members in self._active.members]

    def _watch(self) -> None:
        """What waits watch: both groups' announcements, and every control connection."""
        living = [worker for worker in range(len(self.processes)) if worker not in self._lost]
        self._controls = {self.processes[worker].control.fileno(): worker for worker in living}
        self._poll = poller(*(group.obs_ready.fd for group in self._signals), *self._controls)

    def _take_announcements(self, ready: list[int]) -> None:
        for fd in ready:
            if fd in self._controls:
                self._handle_message(self._controls[fd])
        for group, signals in enumerate(self._signals):
            if signals.obs_ready.fd in ready and (count := signals.obs_ready.take()):
                if count > 1 or self._ready[group]:
                    raise RunError(f"out of step with the workers: group {group} has announced a row too many")
                self._ready[group] = True

    def _collect_replies(self, timeout_s: float, request: str | None = None) -> list[Any]:
        replies: dict[int, Any] = {}
        while len(replies) < len(self.processes):
            ready = self._wait_for_event(timeout_s, lambda: sorted({*range(len(self.processes))} - replies.keys()))
            for worker in [self._controls[fd] for fd in ready if fd in self._controls]:
                try:
                    kind, content = self._receive(worker)
                except RunError as error:
                    if not (self._batch.restart_on_error and request in MET_BY_NEW_WORKERS):
                        raise
                    self._lose(worker, str(error))
                    self._replace_lost()
                    kind, content = "done", None
                if kind == "done":
                    replies[worker] = content
        return [replies[worker] for worker in range(len(self.processes))]

    def _receive(self, worker: int) -> tuple[str, Any]:
        """("done", the worker's answer), or ("warning", its text), which is in the log now.

        Raises what the worker reports, or that it died."""
        try:
            kind, content = self.processes[worker].control.recv()
        except (EOFError, ConnectionResetError):
            raise RunError(self._obituary(worker)) from None
        if kind == "warning":
            logger.warning("worker %d: %s", worker, content)
        if kind in ("done", "warning"):
            return kind, content
        raise UsageError(content) if kind == "usage" else RunError(f"worker {worker}: {content}")

    def _handle_message(self, worker: int) -> None:
        """In a rollout: a warning, or the worker's death."""
        try:
            kind, _ = self._receive(worker)
        except RunError as error:
            if not self._batch.restart_on_error:
                raise
            self._lose(worker, str(error))
        else:
            if kind == "done":
                raise RunError(f"worker {worker} spoke out of turn")

    def _late(self) -> list[int]:
        """In a rollout: the workers that still owe an announcement."""
        return sorted({worker for group in range(NUM_GROUPS) for worker in self._owing(group)})

    def _owing(self, group: int) -> list[int]:
        """The workers that have been answered more often than they have announced."""
        expected = self._answered[group] + 2
        return [w for w in self._members[group] if self._rows_announced(w, group) < expected]

    def _handle_hang(self, timeout_s: float, late: list[int]) -> None:
        """The late workers have shown no sign of life for timeout_s."""
        flag = "--env-timeout-s" if self._begun else "--env-build-timeout-s"
        messages = [f"{self._where(worker)} has not answered for {timeout_s:g} s ({flag})" for worker in late]
        if not (self._begun and self._batch.restart_on_error):
            raise RunError(messages[0])
        for worker in late:
            self._launcher.kill(self.processes[worker])
        for worker, message in zip(late, messages, strict=True):
            self._lose(worker, message)

    def _rows_announced(self, worker: int, group: int) -> int:
        """In this rollout. What has been read was announced, even if the worker was killed before it had counted it."""
        counted = int(self._status[worker, ANNOUNCED + group] - self._rows_before[worker, group])
        return max(counted, self._rows_read[group])

    def _lose(self, worker: int, reason: str) -> None:
        """A worker has failed: it is ended, and its environments take no more steps in the rollout under way."""
        self._launcher.kill(self.processes[worker])
        self.processes[worker].control.close()
        for stage in (self._train, self._evaluation):
            stage.arrays["restarts"][stage.envs(worker)] += 1
        self.num_replaced += 1
        logger.warning("%s; a new process takes over (%d so far)", reason, self.num_replaced)
        self._lost.append(worker)
        self._watch()
        if not self._begun:
            return
        for group in range(NUM_GROUPS):
            if self._active.has[worker, group]:
                self._members[group].remove(worker)
                stand_still(self._active.arrays_of(worker, group), max(self._rows_announced(worker, group) - 1, 0))
                self._settle(group)

    def _replace_lost(self) -> None:
        """Between two rollouts: starts a process with new environments in place of each lost worker."""
        lost, self._lost = self._lost, []
        for worker in lost:
            self._status[worker, ANNOUNCED:] = self._rows_before[worker]
            setup = replace(
                self.processes[worker].setup,
                replaces=True,
                evaluation_role=self._evaluation_role,
                turns=(self._turn[0], self._turn[1]),
            )
            self.processes[worker] = self._launcher.launch(setup)
        if lost:
            self._watch()
        for worker in lost:
            self._wait_until_built(worker)
            self._alive_at[worker] = time.monotonic()

    def _settle(self, group: int) -> None:
        """Waits for the group's living workers; then takes stock, since a dead one leaves its signals in any state."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and any(
            self._launcher.status(self.processes[worker]) is None for worker in self._owing(group)
        ):
            time.sleep(0.001)
        signals = self._signals[group]
        for left in (signals.obs_ready, signals.countdown, signals.actions_ready[1 - self._turn[group]]):
            while left.take():
                pass
        owing = self._owing(group)
        if len(owing) > 1:
            signals.countdown.announce(len(owing) - 1)
        self._ready[group] = not owing and self._rows_read[group] < self._answered[group] + 2

    def _wait_until_built(self, worker: int) -> None:
        deadline = time.monotonic() + self._build_timeout_s
        while not (self.processes[worker].control.poll(SLICE_S) and self._receive(worker)[0] == "done"):
            if time.monotonic() > deadline:
                raise RunError(f"{self._where(worker)} was not built within {self._build_timeout_s:g} s")

    def _obituary(self, worker: int) -> str:
        status = self._launcher.status(self.processes[worker], EXIT_PATIENCE_S)
        how = (
            f"was killed by {signal.Signals(-status).name}" if status and status < 0 else f"exited with status {status}"
        )
        return f"{self._where(worker)} {how}"

    def _where(self, worker: int) -> str:
        """Which worker, and which environment it was stepping with which action."""
        env = int(self._status[worker, CURRENT_ENV])
        index = self._batch.first_env + env
        text = f"worker {worker} (process {self.processes[worker].pid}), in environment {index} "
        text += f"(run seed {self._batch.seed}, {self._batch.env.env_id})"
        step = self._answered[int(env >= self._active.num_envs // NUM_GROUPS)]
        return f"{text} at action {self._active.arrays['action'][step, env]}," if step >= 0 else f"{text},"


def _group_signals() -> GroupSignals:
    countdown, even, odd = (Signal(one_at_a_time=True) for _ in range(3))
    return GroupSignals(Signal(), countdown, (even, odd))
