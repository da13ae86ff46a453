"""The server's side of the simulator processes: starts them, waits for them, and knows when one is in trouble.

No wait outlives the process waited for: a worker that raises, exits, is killed or hangs ends the wait with a RunError
that names it, or (on_env_error="restart") is replaced.
"""

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from accel_rl.affinity import default_worker_cpus
from accel_rl.envs.batch import BatchConfig, Layout
from accel_rl.errors import RunError, UsageError
from accel_rl.samplers.shared import SharedArrays, Signal, poller
from accel_rl.samplers.worker import ANNOUNCED, CURRENT_ENV, HEARTBEAT, StageSetup, WorkerSetup

logger = logging.getLogger("accel_rl")

NUM_GROUPS = 2
SLICE_S = 0.5  # a wait looks this often whether the workers still make progress
EXIT_PATIENCE_S = 2.0
MET_BY_NEW_WORKERS = ("start", "open_evaluation", "close_evaluation")  # requests that need not be repeated to them


class Stage:
    """Shared arrays for a number of environments that is split evenly over the workers, group 0 first."""

    def __init__(self, layout: Layout, num_workers: int):
        self.layout = layout
        self.memory = SharedArrays(layout)
        self.arrays = self.memory.arrays
        self.num_envs = self.arrays["reward"].shape[1]
        self.horizon = self.arrays["reward"].shape[0]
        self.envs_per_worker = self.num_envs // num_workers

    def setup(self, worker: int) -> StageSetup:
        return StageSetup(self.layout, self.memory.fd, worker * self.envs_per_worker, self.envs_per_worker)


@dataclass
class _Process:
    popen: "subprocess.Popen[bytes]"
    control: "Connection[Any, Any]"
    setup: WorkerSetup


class WorkerPool:
    """num_workers simulator processes in two groups, started and with their environments built when this returns.

    Raises UsageError or RunError if an environment can't be built, within build_timeout_s of its last sign of life.
    """

    def __init__(
        self,
        num_workers: int,
        batch: BatchConfig,
        train: Stage,
        evaluation: Stage,
        timeout_s: float = 20.0,
        build_timeout_s: float = 60.0,
    ):
        self._per_group = num_workers // NUM_GROUPS
        self._timeout_s, self._build_timeout_s = timeout_s, build_timeout_s
        self._batch, self._train, self._evaluation = batch, train, evaluation
        self._active = train
        self._evaluation_role: int | None = None
        status_layout: Layout = {"status": ((num_workers, 3), "<i8")}
        self._status_memory = SharedArrays(status_layout)
        self._status = self._status_memory.arrays["status"]
        self._obs_ready = [Signal() for _ in range(NUM_GROUPS)]
        self._actions_ready = [(Signal(one_at_a_time=True), Signal(one_at_a_time=True)) for _ in range(NUM_GROUPS)]
        self._turn = [0] * NUM_GROUPS  # which of its two signals each group waits for
        self._pending = [0] * NUM_GROUPS  # announcements of each group not yet made use of
        self._answered = [-1] * NUM_GROUPS  # the step whose actions each group has; -1: none of this rollout
        self._rows_read = [0] * NUM_GROUPS  # of this rollout
        self._rows_before = 0  # announced by each worker in all rollouts before this one
        self._begun = False
        self._heartbeats = self._status[:, HEARTBEAT].copy()
        self._alive_at = np.full(num_workers, time.monotonic())  # the last sign of life, or when there was work to do
        self._next_look = 0.0
        self.num_replaced = 0
        self._processes: list[_Process] = []
        try:
            for worker, cpu in enumerate(default_worker_cpus(num_workers)):
                setup = WorkerSetup(
                    sys_path=[path or os.getcwd() for path in sys.path],
                    index=worker,
                    cpu=cpu,
                    batch=batch,
                    train=train.setup(worker),
                    evaluation=evaluation.setup(worker),
                    status_layout=status_layout,
                    status_fd=self._status_memory.fd,
                    obs_ready=self._obs_ready[worker // self._per_group],
                    actions_ready=self._actions_ready[worker // self._per_group],
                )
                self._processes.append(self._launch(setup))
            self._watch()
            self._collect_replies(build_timeout_s)
        except BaseException:
            self.close()
            raise

    # ---- the rollout: begin, then wait and answer T + 1 and T times for each group ----

    def begin(self) -> None:
        """Every worker begins a rollout."""
        self._answered = [-1] * NUM_GROUPS
        self._begun = True
        for group in range(NUM_GROUPS):
            self._wake(group)

    def wait(self, prefer: int) -> int:
        """Waits for every worker of a group; when it returns, that group's newest rows are safe to read.

        Returns the group that is ready first, `prefer` if both are."""
        while True:
            for group in (prefer, 1 - prefer):
                if self._pending[group] == self._per_group:
                    self._pending[group] = 0
                    self._rows_read[group] += 1
                    return group
            self._take_announcements(self._wait_for_event(self._timeout_s, self._late))

    def answer(self, group: int) -> None:
        """The group's actions are written: its workers step."""
        self._answered[group] += 1
        self._wake(group)

    def _wake(self, group: int) -> None:
        self._alive_at[group * self._per_group : (group + 1) * self._per_group] = time.monotonic()
        self._actions_ready[group][self._turn[group]].announce(self._per_group)
        self._turn[group] = 1 - self._turn[group]

    def end(self) -> None:
        """After a rollout: raises RunError if an announcement is left over, which would lose synchronisation."""
        self._begun = False
        if left := self.announcements_left():
            raise RunError(f"out of step with the workers: {left} announcements left over after a rollout")
        self._rows_before += self._active.horizon + 1
        self._rows_read = [0] * NUM_GROUPS

    def announcements_left(self) -> int:
        """Between rollouts, when nobody waits for any: must be 0."""
        return sum(announcement.take() for announcement in self._signals()) + sum(self._pending)

    def _signals(self) -> list[Signal]:
        return [*self._obs_ready, *itertools.chain(*self._actions_ready)]

    # ---- between rollouts ----

    def request(self, name: str, arguments: list[Any] | None = None, timeout_s: float | None = None) -> list[Any]:
        """Sends one message to every worker; returns their answers, in order."""
        if self._batch.restart_on_error:
            for worker, process in enumerate(self._processes):
                if process.popen.poll() is not None:
                    self._replace(worker, self._obituary(worker))
        self._alive_at[:] = time.monotonic()
        for worker, process in enumerate(self._processes):
            with contextlib.suppress(BrokenPipeError):  # found dead by the wait below
                process.control.send((name, arguments[worker] if arguments else None))
        return self._collect_replies(timeout_s or self._build_timeout_s, name)

    def open_evaluation(self, role: int) -> None:
        """Rollouts are now those of newly built evaluation environments."""
        self._active, self._evaluation_role = self._evaluation, role
        self.request("open_evaluation", [role] * len(self._processes))

    def close_evaluation(self) -> None:
        self._active, self._evaluation_role = self._train, None
        self.request("close_evaluation")

    def close(self) -> None:
        """Ends every worker and gives all shared memory back; a worker that doesn't end at once is killed."""
        for process in self._processes:
            process.control.close()
        deadline = time.monotonic() + (0 if self._begun else EXIT_PATIENCE_S)
        for process in self._processes:
            _end(process.popen, deadline - time.monotonic())
        self._processes = []
        for announcement in self._signals():
            announcement.close()
        self._obs_ready, self._actions_ready = [], []
        for memory in (self._train.memory, self._evaluation.memory, self._status_memory):
            memory.close()

    # ---- trouble ----

    def _launch(self, setup: WorkerSetup) -> _Process:
        """Starts one process from the worker's own module, so that the user's __main__ is not imported again."""
        ours, theirs = Pipe()
        fds = {
            theirs.fileno(),
            setup.train.fd,
            setup.evaluation.fd,
            setup.status_fd,
            *(fd for signal in (setup.obs_ready, *setup.actions_ready) for fd in signal.fds),
        }
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(setup.sys_path),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "accel_rl.samplers.worker", str(theirs.fileno())]
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env=environment,
            process_group=0,  # a terminal's Ctrl-C is for this process only
        )
        theirs.close()
        ours.send(setup)
        return _Process(popen, ours, setup)

    def _wait_for_event(self, timeout_s: float, late: Callable[[], list[int]]) -> list[int]:
        """The descriptors that are readable, of groups and of control connections. late(): the workers waited for.

        Returns [] after having replaced a worker, or raises RunError."""
        while True:
            ready = self._poll.poll(SLICE_S * 1000)
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
        return [worker for worker in late if now - self._alive_at[worker] > timeout_s]

    def _watch(self) -> None:
        """What waits watch: both groups' announcements, and every control connection."""
        self._controls = [process.control.fileno() for process in self._processes]
        self._poll = poller(*(obs_ready.fd for obs_ready in self._obs_ready), *self._controls)

    def _take_announcements(self, ready: list[int]) -> None:
        for group, obs_ready in enumerate(self._obs_ready):
            if obs_ready.fd in ready:
                self._pending[group] += obs_ready.take()
                if self._pending[group] > self._per_group:
                    raise RunError(
                        f"out of step with the workers: {self._pending[group]} announcements of group {group}"
                    )
        for worker, control in enumerate(self._controls):
            if control in ready:
                self._handle_message(worker)

    def _collect_replies(self, timeout_s: float, request: str | None = None) -> list[Any]:
        replies: dict[int, Any] = {}
        while len(replies) < len(self._processes):
            ready = self._wait_for_event(timeout_s, lambda: sorted({*range(len(self._processes))} - replies.keys()))
            for worker, control in enumerate(self._controls):
                if control in ready:
                    try:
                        kind, content = self._receive(worker)
                    except RunError as error:
                        if not (self._batch.restart_on_error and request in MET_BY_NEW_WORKERS):
                            raise
                        self._replace(worker, str(error))
                        kind, content = "done", None
                    if kind == "done":
                        replies[worker] = content
        return [replies[worker] for worker in range(len(self._processes))]

    def _receive(self, worker: int) -> tuple[str, Any]:
        """("done", the worker's answer), or ("warning", its text), which is in the log now.

        Raises what the worker reports, or that it died."""
        try:
            kind, content = self._processes[worker].control.recv()
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
            self._replace(worker, str(error))
        else:
            if kind == "done":
                raise RunError(f"worker {worker} spoke out of turn")

    def _late(self) -> list[int]:
        """In a rollout: the workers that still owe an announcement."""
        return [w for w in range(len(self._processes)) if self._rows_announced(w) < self._rows_expected(w)]

    def _handle_hang(self, timeout_s: float, late: list[int]) -> None:
        """The late workers have shown no sign of life for timeout_s."""
        flag = "--env-timeout-s" if self._begun else "--env-build-timeout-s"
        messages = [f"{self._where(worker)} has not answered for {timeout_s:g} s ({flag})" for worker in late]
        if not (self._begun and self._batch.restart_on_error):
            raise RunError(messages[0])
        for worker in late:
            self._processes[worker].popen.kill()
        for worker, message in zip(late, messages, strict=True):
            self._replace(worker, message)

    def _rows_announced(self, worker: int) -> int:
        """In this rollout. What has been read was announced, even if the worker was killed before it had counted it."""
        return max(int(self._status[worker, ANNOUNCED]) - self._rows_before, self._rows_read[worker // self._per_group])

    def _rows_expected(self, worker: int) -> int:
        return self._answered[worker // self._per_group] + 2

    def _replace(self, worker: int, reason: str) -> None:
        """A new process with new environments takes over; the step that the old one died in is lost."""
        old = self._processes[worker]
        old.popen.kill()
        old.popen.wait()
        old.control.close()
        self._status[worker, ANNOUNCED] = self._rows_before + self._rows_announced(worker)
        next_step = self._rows_announced(worker) - 1  # -1: it died before it had announced row 0
        owes_a_step = self._begun and self._rows_announced(worker) < self._rows_expected(worker)
        in_rollout = self._begun and 0 <= next_step < self._active.horizon
        for stage in (self._train, self._evaluation):
            columns = slice(worker * stage.envs_per_worker, (worker + 1) * stage.envs_per_worker)
            stage.arrays["restarts"][columns] += 1
        self.num_replaced += 1
        logger.warning("%s; a new process takes over (%d so far)", reason, self.num_replaced)
        group = worker // self._per_group
        last_turn = 1 - self._turn[group]
        setup = replace(
            old.setup,
            replaces=True,
            evaluation_role=self._evaluation_role,
            lost_step=next_step if in_rollout else None,
            turn=last_turn if owes_a_step else self._turn[group],
        )
        if self._begun:
            self._settle(group)
        self._processes[worker] = self._launch(setup)
        self._watch()
        self._wait_until_built(worker)
        self._alive_at[worker] = time.monotonic()
        if owes_a_step:
            self._actions_ready[group][last_turn].announce()

    def _settle(self, group: int) -> None:
        """Waits for the group's living workers; then takes stock, since a dead one leaves its signals in any state."""
        workers = range(group * self._per_group, (group + 1) * self._per_group)
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and any(
            self._processes[w].popen.poll() is None and self._rows_announced(w) < self._rows_expected(w)
            for w in workers
        ):
            time.sleep(0.001)
        for announcement in (self._obs_ready[group], self._actions_ready[group][1 - self._turn[group]]):
            while announcement.take():
                pass
        self._pending[group] = sum(self._rows_announced(w) > self._rows_read[group] for w in workers)

    def _wait_until_built(self, worker: int) -> None:
        deadline = time.monotonic() + self._build_timeout_s
        while not (self._processes[worker].control.poll(SLICE_S) and self._receive(worker)[0] == "done"):
            if time.monotonic() > deadline:
                raise RunError(f"{self._where(worker)} was not built within {self._build_timeout_s:g} s")

    def _obituary(self, worker: int) -> str:
        popen = self._processes[worker].popen
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(EXIT_PATIENCE_S)
        status = popen.returncode
        how = (
            f"was killed by {signal.Signals(-status).name}" if status and status < 0 else f"exited with status {status}"
        )
        return f"{self._where(worker)} {how}"

    def _where(self, worker: int) -> str:
        """Which worker, and which environment it was stepping with which action."""
        env = int(self._status[worker, CURRENT_ENV])
        text = f"worker {worker} (process {self._processes[worker].popen.pid}), in environment {env} "
        text += f"(run seed {self._batch.seed}, {self._batch.env.env_id})"
        step = self._answered[worker // self._per_group] if self._processes else -1
        return f"{text} at action {self._active.arrays['action'][step, env]}," if step >= 0 else f"{text},"


def _end(popen: "subprocess.Popen[bytes]", patience_s: float) -> None:
    try:
        popen.wait(max(patience_s, 0.01))
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
