"""The learner's side of the agents: starts them, watches them, replaces or retires them, and asks for their states.

No agent that has died or hangs goes unnoticed: `watch`, which every wait of the sampler calls, raises RunError, or with
on_env_error="restart" puts a new process in its place.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from accel_rl.config.queue_settings import AgentReplayConfig
from accel_rl.envs.batch_simulator import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.shared_memory import Layout, Semaphore, SharedArrays, make_poller
from accel_rl.samplers.queued.agent import AgentSetup
from accel_rl.samplers.queued.agent_replay import predicted_tasks
from accel_rl.samplers.queued.slots import IndexQueue, SlotState, Status, free_slots, slots_of
from accel_rl.samplers.worker_launcher import EXIT_PATIENCE_S, Launcher, WorkerProcess

logger = logging.getLogger("accel_rl")

POLL_S = 0.1  # between two looks at whether an answer can still come


class AgentPool:
    """Holds agents with numbers from 0 on, whose environments are built when the constructor returns.

    layout: of the shared arrays, for max_agents agents. timeout_s: longest time without a sign of life while playing;
    build_timeout_s: elsewhere. replay: that each agent keeps for auxiliary tasks.
    Raises UsageError or RunError if an environment cannot be built."""

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        layout: Layout,
        num_agents: int,
        slots_per_agent: int,
        timeout_s: float,
        build_timeout_s: float,
        replay: AgentReplayConfig | None = None,
    ):
        self._spec, self._batch, self._layout, self._replay = spec, batch, layout, replay
        self._timeout_s, self._build_timeout_s = timeout_s, build_timeout_s
        self.slots_per_agent = slots_per_agent
        self.memory = SharedArrays(layout)
        self.arrays = self.memory.arrays
        self.horizon = self.arrays["reward"].shape[1]
        self.max_agents = len(self.arrays["status"])
        self.predictions, self.trainings = IndexQueue(), IndexQueue()
        self.auxiliary = {task: IndexQueue() for task in predicted_tasks(replay)}
        self.replies = [Semaphore(one_at_a_time=True) for _ in range(self.max_agents)]
        self._free = [Semaphore(one_at_a_time=True) for _ in range(self.max_agents)]
        for free in self._free:
            free.release(slots_per_agent)
        self.processes: dict[int, WorkerProcess] = {}
        self._starting: set[int] = set()  # launched, and not built and started yet
        self.num_wanted = num_agents
        self._heartbeats = self.arrays["status"][:, Status.HEARTBEAT].copy()
        self._alive_at = np.full(self.max_agents, time.monotonic())
        self.num_replaced = 0
        self._waited_s, self._waited_ns = 0.0, 0  # so far, and the sum over agents that this accounts for
        queues = (self.predictions, self.trainings, *self.auxiliary.values())
        fds = [self.memory.fd, *(fd for queue in queues for fd in queue.fds)]
        fds += [fd for semaphore in (*self.replies, *self._free) for fd in semaphore.fds]
        self._launcher = Launcher(batch, sorted({*fds}))
        try:
            self.set_members(range(num_agents))
        except BaseException:
            self.close()
            raise

    def set_members(self, agents: Collection[int]) -> None:
        """Before `start`: makes these the agents, whose environments are built when this returns."""
        for agent in self.processes.keys() - {*agents}:
            self._launcher.kill(self.processes[agent])
            self.processes.pop(agent).control.close()
        self.num_wanted = len(agents)
        new = [agent for agent in agents if agent not in self.processes]
        for agent in new:
            self._launch(agent, starts=False)
        self._collect_replies("built", new)

    def start(self, states: dict[int, Any] | None = None) -> list[int]:
        """Lets all agents play, from these states if there are any.

        Returns those whose environments could only be started anew."""
        for agent in self.processes:
            self._send(agent, states and states[agent])
        restarted = self._collect_replies("done", self.processes)
        self._starting.clear()
        return [agent for agent, is_new in restarted.items() if is_new]

    def get_states(self, check: Callable[[], None]) -> tuple[dict[int, Any], dict[int, RunError]]:
        """Returns the agents' states, while predictors and trainers are paused and no agent is being started.

        Those that have retired by now are left out; the second dict has the errors of those that have failed, which are
        killed. check: called while it waits; raises if no answer is to be expected any more."""
        states: dict[int, Any] = {}
        failed: dict[int, RunError] = {}
        for agent in self.processes:
            self._send(agent, "get_state")
        for agent in list(self.processes):
            try:
                states |= self._collect_replies("done", [agent], check)
            except RunError as error:
                check()
                self._launcher.kill(self.processes[agent])
                failed[agent] = error
        return states, failed

    def _send(self, agent: int, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died, which shows when its reply is waited for
            self.processes[agent].control.send(message)

    def release_slot(self, slot: int) -> None:
        """Gives a slot, whose segment has been copied, back to its agent."""
        self.arrays["state"][slot] = SlotState.FREE
        self._free[slot // self.slots_per_agent].release()

    def restore_slots(self, states: dict[int, int]) -> None:
        """Before `start`: sets the states of slots; all others are free."""
        self.arrays["state"][:] = SlotState.FREE
        for slot, state in states.items():
            self.arrays["state"][slot] = state
        for agent in range(self.max_agents):
            self._reset_semaphores(agent)

    # ---- their number ----

    @property
    def is_starting(self) -> bool:
        """Whether an agent has been launched that does not play yet."""
        return bool(self._starting)

    @property
    def num_agents(self) -> int:
        """Agents that play and have not been asked to retire."""
        return sum(not self.arrays["status"][agent, Status.RETIRES] for agent in self.processes)

    def set_number(self, num_agents: int) -> None:
        """Starts agents, or asks those with the highest numbers to retire, until so many play.

        While others retire, there may not be room for all; `watch` starts the rest."""
        self.num_wanted = num_agents
        playing = [agent for agent in self.processes if not self.arrays["status"][agent, Status.RETIRES]]
        for agent in sorted(playing, reverse=True)[: max(0, len(playing) - num_agents)]:
            self.arrays["status"][agent, Status.RETIRES] = True
        unused = [agent for agent in range(self.max_agents) if agent not in self.processes]
        for agent in unused[: max(0, num_agents - len(playing))]:
            self._launch(agent, starts=True)

    def _launch(self, agent: int, starts: bool) -> None:
        status = self.arrays["status"][agent]
        status[Status.GENERATION] += 1
        status[Status.RETIRES] = status[Status.IS_WAITING] = False
        setup = AgentSetup(
            sys_path=[path or os.getcwd() for path in sys.path],
            index=agent,
            spec=self._spec,
            batch=self._batch,
            layout=self._layout,
            fd=self.memory.fd,
            slots_per_agent=self.slots_per_agent,
            horizon=self.horizon,
            predictions=self.predictions,
            trainings=self.trainings,
            auxiliary=self.auxiliary,
            replay=self._replay,
            replies=self.replies[agent],
            free=self._free[agent],
            generation=int(status[Status.GENERATION]),
            starts=starts,
        )
        self.processes[agent] = self._launcher.launch(setup)
        self._starting.add(agent)
        self._alive_at[agent] = time.monotonic()

    # ---- watching ----

    def watch(self, paused: Callable[[], AbstractContextManager[list[int]]]) -> None:
        """Handles what agents have to say, and looks for dead and hung ones. Raises RunError for these.

        paused: pauses predictors and trainers; gives the slots that the trainers have still to copy."""
        for agent in list(self.processes):
            try:
                while agent in self.processes and self.processes[agent].control.poll():
                    self._handle(agent, *self._receive(agent))
            except RunError as error:
                self.replace(agent, error, paused)
        if self.num_agents < self.num_wanted:
            self.set_number(self.num_wanted)
        for agent in self._find_hung():
            limit, flag = self._limit(agent)
            message = f"{self._describe(agent)} has not answered for {limit:g} s ({flag})"
            self.replace(agent, RunError(message), paused)

    def _handle(self, agent: int, kind: str, _: Any) -> None:
        if kind == "started":
            self._starting.discard(agent)
        elif kind == "retired":
            self.arrays["restarts"][agent] += 1  # the agent that has its number next plays other games
            self._launcher.kill(self.processes[agent])
            self.processes.pop(agent).control.close()

    def _find_hung(self) -> list[int]:
        now, status = time.monotonic(), self.arrays["status"]
        waits = status[:, Status.IS_WAITING] != 0
        waits[self._answered()] = False
        moved = (status[:, Status.HEARTBEAT] != self._heartbeats) | waits
        self._alive_at[moved] = now
        self._heartbeats = status[:, Status.HEARTBEAT].copy()
        return [agent for agent in self.processes if now - self._alive_at[agent] > self._limit(agent)[0]]

    def _answered(self) -> list[int]:
        """Returns the agents that have been answered and have not seen it yet."""
        agent_of = {self.replies[agent].fd: agent for agent in self.processes}
        return [agent_of[fd] for fd, _ in make_poller(*agent_of).poll(0)]

    def _limit(self, agent: int) -> tuple[float, str]:
        if agent in self._starting:
            return self._build_timeout_s, "--env-build-timeout-s"
        return self._timeout_s, "--env-timeout-s"

    def replace(self, agent: int, error: RunError, paused: Callable[[], AbstractContextManager[list[int]]]) -> None:
        """Starts a new process in the place of one that has failed, if environments are to be restarted; else, or if it
        has not begun to play, raises the error.

        What it had handed over is still learned from; its unfinished segment is lost. One that was to retire has."""
        self._launcher.kill(self.processes[agent])
        if not self._batch.restart_on_error or agent in self._starting:
            raise error
        self.num_replaced += 1
        logger.warning("%s; a new process takes over (%d so far)", str(error).rstrip(), self.num_replaced)
        with paused() as queued:
            self.processes.pop(agent).control.close()
            for slot in slots_of(agent, self.slots_per_agent):
                if slot not in queued:
                    self.arrays["state"][slot] = SlotState.FREE
            self._reset_semaphores(agent)
            self.arrays["restarts"][agent] += 1
            if not self.arrays["status"][agent, Status.RETIRES]:
                self._launch(agent, starts=True)

    def _reset_semaphores(self, agent: int) -> None:
        """Gives the semaphores of an agent that does not live the values that a new one expects."""
        for semaphore in (self.replies[agent], self._free[agent]):
            while semaphore.try_acquire():
                pass
        if num_free := len(free_slots(self.arrays["state"], agent, self.slots_per_agent)):
            self._free[agent].release(num_free)

    def _collect_replies(
        self, expected: str, agents: Iterable[int], check: Callable[[], None] = lambda: None
    ) -> dict[int, Any]:
        """Returns the content of each agent's message of the expected kind, once it is there; none of a retired one."""
        replies: dict[int, Any] = {}
        start = time.monotonic()
        for agent in list(agents):
            limit, flag = self._limit(agent)
            while agent in self.processes and agent not in replies:
                if not self.processes[agent].control.poll(POLL_S):
                    check()
                    if time.monotonic() > start + limit:
                        raise RunError(f"{self._describe(agent)} has not answered for {limit:g} s ({flag})")
                    continue
                kind, content = self._receive(agent)
                if kind == expected:
                    replies[agent] = content
                else:
                    self._handle(agent, kind, content)
        self._alive_at[:] = time.monotonic()
        return replies

    def _receive(self, agent: int) -> tuple[str, Any]:
        """Returns an agent's message, after logging it if it is a warning.

        Raises UsageError or RunError if the agent reports one, RunError if it has died."""
        process = self.processes[agent]
        try:
            kind, content = process.control.recv()
        except (EOFError, ConnectionResetError):
            raise RunError(f"{self._describe(agent)} {self._launcher.describe_exit(process)}") from None
        if kind == "warning":
            logger.warning("agent %d: %s", agent, content)
        if kind == "usage":
            raise UsageError(content)
        if kind == "failed":
            raise RunError(f"agent {agent}: {content}")
        return kind, content

    def _describe(self, agent: int) -> str:
        """Returns which agent it is, and with which action it was stepping its environment."""
        text = f"agent {agent} (process {self.processes[agent].pid}), in environment {self._batch.first_env + agent} "
        text += f"(run seed {self._batch.seed}, {self._batch.env.env_id})"
        if agent in self._starting:
            return f"{text},"
        slot, row = self.arrays["status"][agent, [Status.SLOT, Status.ROW]]
        return f"{text} at action {self.arrays['action'][slot, min(row, self.horizon - 1)]},"

    @property
    def waited_s(self) -> float:
        """Seconds that agents have waited for the learner so far: the mean of those that there were at a time."""
        waited_ns = self.arrays["status"][:, Status.WAITED_NS].sum()
        self._waited_s += (waited_ns - self._waited_ns) / 1e9 / max(1, len(self.processes))
        self._waited_ns = waited_ns
        return self._waited_s

    def close(self) -> None:
        """Ends all agents."""
        self._launcher.close([*self.processes.values()], EXIT_PATIENCE_S)
        self.processes.clear()
        for queue in (self.predictions, self.trainings, *self.auxiliary.values()):
            queue.close()
        for semaphore in (*self.replies, *self._free):
            semaphore.close()
        self.memory.close()
