"""Starts the simulator processes for the server, waits for them, and handles their failures.

No wait lasts forever: if a worker raises, exits, is killed or hangs, the wait ends with a RunError that names it. With
on_env_error="restart", the worker is lost instead: its environments stand still until the pause, when a new process
replaces it.
"""

import itertools
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from accel_rl.envs.batches.env_batch import BatchConfig, stand_still
from accel_rl.envs.games.emulator_choice import is_native
from accel_rl.errors import RunError
from accel_rl.hardware.placement import default_worker_cpus
from accel_rl.hardware.shared_memory import make_poller
from accel_rl.processes.fork_server import EXIT_PATIENCE_S, Child, ForkServer
from accel_rl.processes.pool import Message, ProcessPool
from accel_rl.processes.spawning import describe_exit
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.env_arrays import NUM_GROUPS, EnvArrays
from accel_rl.samplers.worker import GroupSemaphores, WorkerSetup
from accel_rl.samplers.worker_status import WorkerStatus

POLL_INTERVAL_S = 0.5  # how often a wait checks that the workers still make progress
SPIN_S = 0.0001  # a wait for workers yields its CPU repeatedly for this long before it sleeps, like `worker.SPIN_NS`
ACT_S = 0.0005  # longer than an otherwise idle GPU takes to act: 0.14 to 0.3 ms for 8 to 448 games on an H200
DONE_BY_NEW_WORKERS = ("start", "open_evaluation", "close_evaluation")  # requests that new workers do not need again


class WorkerPool:
    """A pool of config.num_workers simulator processes, whose environments are built when the constructor returns.

    config.env_timeout_s: longest time without a sign of life in a rollout; env_build_timeout_s: the same elsewhere.
    Raises UsageError or RunError if an environment cannot be built."""

    def __init__(self, config: SamplerConfig, batch: BatchConfig, train: EnvArrays, evaluation: EnvArrays):
        self._timeout_s, self._build_timeout_s = config.env_timeout_s, config.env_build_timeout_s
        self._spin = config.spin
        self._batch, self.train, self._evaluation = batch, train, evaluation
        self._active = train
        self._members = train.members()  # by group, without those lost in this rollout
        self._lost: dict[int, WorkerSetup] = {}
        self._evaluation_role: int | None = None
        self.status = WorkerStatus(config.num_workers)
        self._semaphores = semaphores = (GroupSemaphores.create(), GroupSemaphores.create())
        self._turn = [0] * NUM_GROUPS  # which of its two actions_ready semaphores each group waits for
        self._ready = [False] * NUM_GROUPS  # an announced row has not been read yet
        self._acted = [-1] * NUM_GROUPS  # the last step whose actions each group has; -1: none of this rollout
        self._rows_read = [0] * NUM_GROUPS  # rows of this rollout
        self._in_rollout = False
        self._woken_at = [time.monotonic()] * NUM_GROUPS  # when each group last received work
        self._next_check = 0.0
        fds = [memory.fd for memory in (train.memory, evaluation.memory, self.status.memory)]
        fds += [fd for group in semaphores for each in group.all() for fd in each.fds]
        server = simulator_server("accel_rl.samplers.worker:main", batch, fds)
        self._pool = ProcessPool("worker", server, self._place)
        try:
            cpus = default_worker_cpus(config.num_workers) if config.worker_cpus is None else config.worker_cpus
            for worker, cpu in enumerate(cpus):
                setup = WorkerSetup(
                    index=worker,
                    cpu=cpu,
                    batch=batch,
                    train=train,
                    evaluation=evaluation,
                    status=self.status.memory,
                    semaphores=semaphores,
                )
                self._pool.launch(worker, setup)
            self._register_connections()
            self.status.restart_clocks()  # the shared preparation may have taken longer than their time limit
            self._collect_replies()
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[Child]:
        """The workers' processes, in order."""
        return [child for _, child in sorted(self._pool.children.items())]

    # ---- a rollout: begin; for each group T + 1 times wait and T times announce_actions; end ----

    def begin(self) -> None:
        """Wakes every worker for a new rollout."""
        self._acted = [-1] * NUM_GROUPS
        self._members = self._active.members()
        self._in_rollout = True
        for group in range(NUM_GROUPS):
            self._wake(group)

    def wait(self, groups: Sequence[int], is_done: Callable[[], bool] | None = None) -> int | None:
        """Waits for all workers of one of these groups; then that group's newest rows are safe to read.

        Returns the group that is ready first; if several are, the first one named. is_done: called first and
        repeatedly; once it returns True, this method returns None."""
        start = time.monotonic()
        while True:
            if is_done and is_done():
                return None
            for group in groups:
                if self._ready[group]:
                    self._ready[group] = False
                    self._rows_read[group] += 1
                    return group
            pause_s = self._pause_s(time.monotonic() - start) if is_done else None
            self._acquire_announcements(self._wait_for_event(pause_s))

    def _pause_s(self, waited_s: float) -> float:
        """Returns how long to wait for workers before asking a GPU again.

        A GPU has no descriptor to wait for. A server with its own core keeps asking; otherwise it leaves the CPU to
        the workers after ACT_S."""
        return 0.0 if self._spin or waited_s < ACT_S else 0.001

    def announce_actions(self, group: int) -> None:
        """Wakes the group's workers to step, after their next actions have been written."""
        self._acted[group] += 1
        self._wake(group)

    def _wake(self, group: int) -> None:
        self._woken_at[group] = time.monotonic()
        semaphores, num_members = self._semaphores[group], len(self._members[group])
        if not num_members:  # all of them are lost, so the pool announces the next row itself
            self._ready[group] = True
            return
        if num_members > 1:
            semaphores.countdown.release(num_members - 1)
        semaphores.actions_ready[self._turn[group]].release(num_members)
        self._turn[group] = 1 - self._turn[group]

    def end(self) -> None:
        """Ends a rollout: new processes replace lost workers.

        Raises RunError if a semaphore has a token left over, since that breaks synchronization."""
        self._in_rollout = False
        if left := self.tokens_left():
            raise RunError(f"out of step with the workers: {left} announcements left over after a rollout")
        self.status.finish_rollout((self._active.horizon + 1) * self._active.serves)
        self._rows_read = [0] * NUM_GROUPS
        self._replace_lost()

    def tokens_left(self) -> int:
        """Takes all tokens left in the semaphores between two rollouts; returns their number, which must be 0."""
        return sum(each.try_acquire() for group in self._semaphores for each in group.all()) + sum(self._ready)

    # ---- between rollouts ----

    def request(self, name: str, arguments: list[Any] | None = None) -> list[Any]:
        """Sends one message to every worker; returns their replies, in order."""
        if self._batch.restart_on_error:
            for worker, process in list(self._pool.children.items()):
                if (status := process.poll()) is not None:
                    self._lose(worker, RunError(f"{self._pool.describe(worker)} {describe_exit(status)}"))
            self._replace_lost()
        self.status.restart_clocks()
        for worker, process in enumerate(self.processes):
            process.send((name, arguments[worker] if arguments else None))
        return self._collect_replies(name)

    def start(self) -> None:
        """Starts the environments of training."""
        self.request("start")

    def get_state(self) -> list[Any]:
        """Returns the states of the environments of training, in order."""
        replies = self.request("get_state")
        envs = [env for worker in range(len(replies)) for env in self.train.envs_of(worker)]
        states = dict(zip(envs, itertools.chain(*replies), strict=True))
        return [states[env] for env in range(self.train.num_envs)]

    def set_state(self, states: list[Any]) -> list[int]:
        """Continues from get_state's result, instead of `start`. Returns the environments that were restarted."""
        parts = [[states[env] for env in self.train.envs_of(worker)] for worker in sorted(self._pool.children)]
        return sorted(env for own_envs in self.request("set_state", parts) for env in own_envs)

    def open_evaluation(self, role: int) -> None:
        """Builds environments for an evaluation; rollouts then use these."""
        self._serve(self._evaluation, role)
        self.request("open_evaluation", [(role, self._turn)] * len(self.processes))

    def close_evaluation(self) -> None:
        """Closes the evaluation's environments; rollouts use those of training again."""
        self._serve(self.train, None)
        self.request("close_evaluation", [self._turn] * len(self.processes))

    def _serve(self, active: EnvArrays, evaluation_role: int | None) -> None:
        """Switches rollouts to training or to an evaluation, where no group has acted yet."""
        self._active, self._evaluation_role = active, evaluation_role
        self._acted = [-1] * NUM_GROUPS

    def close(self) -> None:
        """Ends every worker and releases all shared memory; a worker that does not end at once is killed."""
        self._pool.close(0.01 if self._in_rollout else EXIT_PATIENCE_S)
        for group in self._semaphores:
            for each in group.all():
                each.close()
        for memory in (self.train.memory, self._evaluation.memory, self.status.memory):
            memory.close()

    # ---- waiting ----

    def _register_connections(self) -> None:
        """Makes waits watch both groups' announcements and every living worker's control connection."""
        self._controls = {child.control.fileno(): worker for worker, child in self._pool.children.items()}
        self._poller = make_poller(*(group.obs_ready.fd for group in self._semaphores), *self._controls)

    def _wait_for_event(self, at_most_s: float | None = None) -> list[int]:
        """Returns the readable file descriptors of obs_ready semaphores and control connections.

        Returns [] after at_most_s (None: never). If a worker hangs, returns [] after it is lost, or raises RunError."""
        timeout_s = POLL_INTERVAL_S if at_most_s is None else at_most_s
        while True:
            ready = self._poll(timeout_s, SPIN_S if at_most_s is None else 0.0)
            now = time.monotonic()
            if now > self._next_check:
                self._next_check = now + POLL_INTERVAL_S
                woken_at = np.where(self._active.serves, self._woken_at, 0.0).max(axis=1)
                if hung := self.status.find_hung(self._late_workers(), self._timeout_s, woken_at):
                    self._handle_hang(hung)
                    return []
            if ready or at_most_s is not None:
                return [fd for fd, _ in ready]

    def _poll(self, timeout_s: float, spin_s: float) -> list[tuple[int, int]]:
        """Returns what is readable within timeout_s. Before it sleeps, yields the CPU repeatedly for spin_s."""
        deadline = time.monotonic() + spin_s
        while time.monotonic() < deadline:
            if ready := self._poller.poll(0):
                return ready
            os.sched_yield()
        return self._poller.poll(0 if self._spin else timeout_s * 1000)

    def _acquire_announcements(self, ready: list[int]) -> None:
        for fd in ready:
            if fd in self._controls:
                self._handle_message(self._controls[fd])
        for group, semaphores in enumerate(self._semaphores):
            if semaphores.obs_ready.fd in ready and (count := semaphores.obs_ready.try_acquire()):
                if count > 1 or self._ready[group]:
                    raise RunError(f"out of step with the workers: group {group} has announced a row too many")
                self._ready[group] = True

    def _collect_replies(self, request: str | None = None) -> list[Any]:
        def receive(worker: int) -> Message:
            try:
                return self._pool.receive(worker)
            except RunError as error:
                if request not in DONE_BY_NEW_WORKERS:
                    raise
                self._lose(worker, error)
                self._replace_lost()
                self.status.restart_clocks()  # the others may have replied long ago
                return "done", None

        workers = sorted(self._pool.children)
        replies = self._pool.collect("done", workers, receive, self._watch, POLL_INTERVAL_S)
        return [replies[worker] for worker in workers]

    def _watch(self, late: list[int]) -> None:
        """Raises RunError if a worker hangs between rollouts, as when it builds environments."""
        for worker in self.status.find_hung(late, self._build_timeout_s):
            raise self._pool.hang_error(worker, self._build_timeout_s, "--env-build-timeout-s")

    # ---- workers that fail ----

    def _handle_hang(self, late: list[int]) -> None:
        errors = [self._pool.hang_error(worker, self._timeout_s, "--env-timeout-s") for worker in late]
        if not self._batch.restart_on_error:
            raise errors[0]
        for worker in late:  # kill all of them before looking at the semaphores
            self._pool.children[worker].kill()
        for worker, error in zip(late, errors, strict=True):
            self._lose(worker, error)

    def _handle_message(self, worker: int) -> None:
        """Handles a worker's message in a rollout: a warning, or the end of its connection if it has died."""
        try:
            kind, _ = self._pool.receive(worker)
        except RunError as error:
            self._lose(worker, error)
        else:
            if kind == "done":
                raise RunError(f"worker {worker} sent a reply to no request")

    def _late_workers(self) -> list[int]:
        """Returns the workers that still have to announce a row in this rollout."""
        return sorted({worker for group in range(NUM_GROUPS) for worker in self._late_members(group)})

    def _late_members(self, group: int) -> list[int]:
        """Returns the group's workers that were woken more often than they announced a row."""
        expected = self._acted[group] + 2
        return [worker for worker in self._members[group] if self._rows_announced(worker, group) < expected]

    def _rows_announced(self, worker: int, group: int) -> int:
        """Returns how many rows were announced in this rollout: at least those read, even if the worker died before
        counting."""
        return max(self.status.rows_announced(worker, group), self._rows_read[group])

    def _lose(self, worker: int, error: RunError) -> None:
        """Kills a worker that has failed; in a rollout, its environments take no further step.

        Raises its error instead if environments are not restarted."""
        if not self._batch.restart_on_error:
            raise error
        self._lost[worker] = self._pool.children[worker].setup
        self._pool.remove(worker)
        for arrays in (self.train, self._evaluation):
            arrays.arrays["restarts"][arrays.envs_of(worker)] += 1
        self._pool.report_loss(str(error))
        self._register_connections()
        if not self._in_rollout:
            return
        for group in np.flatnonzero(self._active.serves[worker]).tolist():
            self._members[group].remove(worker)
            stand_still(self._active.arrays_of(worker, group), max(self._rows_announced(worker, group) - 1, 0))
            self._reset_semaphores(group)

    def _reset_semaphores(self, group: int) -> None:
        """Gives a group's semaphores the values that its remaining workers expect: a dead one may leave any value.

        Waits for the living ones first, so none of them changes a semaphore at the same time."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and any(
            self._pool.children[worker].poll() is None for worker in self._late_members(group)
        ):
            time.sleep(0.001)
        semaphores = self._semaphores[group]
        for semaphore in (semaphores.obs_ready, semaphores.countdown, semaphores.actions_ready[1 - self._turn[group]]):
            semaphore.drain()
        late = self._late_members(group)
        if len(late) > 1:
            semaphores.countdown.release(len(late) - 1)
        self._ready[group] = not late and self._rows_read[group] < self._acted[group] + 2

    def _replace_lost(self) -> None:
        """Replaces each lost worker with a process that has new environments, between two rollouts."""
        lost, self._lost = self._lost, {}
        for worker, setup in lost.items():
            self.status.reset(worker)
            turns = (self._turn[0], self._turn[1])
            new = replace(setup, replaces=True, evaluation_role=self._evaluation_role, turns=turns)
            self._pool.launch(worker, new)
        if lost:
            self._register_connections()
        self._pool.collect("done", lost, self._pool.receive, self._watch, POLL_INTERVAL_S)

    def _place(self, worker: int) -> str:
        """Describes which environment a worker was stepping, and with which action."""
        env = self.status.current_env(worker)
        index = self._batch.first_env + env
        group = int(env >= self._active.num_envs // NUM_GROUPS)
        place = f"(run seed {self._batch.seed}, {self._batch.env.env_id})"
        step, num_envs = self._acted[group], self._active.ranges[worker][group][1]
        if step >= 0 and num_envs > 1 and is_native(self._batch.env):  # they step together
            first = self._batch.first_env + self._active.ranges[worker][group][0]
            return f"environment {index} or another one of {first} to {first + num_envs - 1} {place}"
        action = f" at action {self._active.arrays['action'][step, env]}" if step >= 0 else ""
        return f"environment {index} {place}{action}"


def simulator_server(program: str, batch: BatchConfig, fds: Collection[int]) -> ForkServer:
    """Returns a server that forks simulator processes. They share imported simulators and prepared start states.

    The server's methods raise RunError or UsageError if these cannot be prepared."""
    lost = "the process that starts the workers {how}"
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return ForkServer(program, fds, lost, "accel_rl.envs.batches.batch_simulator:prepare", batch, one_thread)
