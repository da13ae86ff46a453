"""Manages the agents for the learner: starts, watches, replaces and retires them, and asks for their states.

Every wait of the sampler calls `watch`. If an agent has died or hangs, it raises RunError; with on_env_error="restart"
it starts a new process in the agent's place.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any

from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError
from accel_rl.hardware.shared_memory import Layout, Semaphore, SharedArrays, make_poller
from accel_rl.processes.fork_server import EXIT_PATIENCE_S, Child
from accel_rl.processes.pool import Message, ProcessPool, SignsOfLife
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.queued.agent import AgentSetup
from accel_rl.samplers.queued.agent_replay import AgentReplayConfig, predicted_tasks
from accel_rl.samplers.queued.slots import IndexQueue, SlotState, Status, free_slots, slots_of
from accel_rl.samplers.worker_pool import simulator_server

POLL_S = 0.1  # time between two checks whether an answer can still come


class AgentPool:
    """The agents, numbered from 0. Their environments are built when the constructor returns.

    layout: the layout of the shared arrays, for max_agents agents. config.env_timeout_s: longest time without a sign of
    life while playing; env_build_timeout_s: the same at other times. replay: settings of each agent's replay, if the
    agents keep any. Raises UsageError or RunError if an environment cannot be built."""

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        layout: Layout,
        config: SamplerConfig,
        slots_per_agent: int,
        replay: AgentReplayConfig | None = None,
    ):
        self._spec, self._batch, self._replay = spec, batch, replay
        self._timeout_s, self._build_timeout_s = config.env_timeout_s, config.env_build_timeout_s
        self.slots_per_agent = slots_per_agent
        self.memory = SharedArrays(layout)
        self.arrays = self.memory.arrays
        self.horizon = self.arrays["reward"].shape[1]
        self.max_agents = len(self.arrays["status"])
        self.predictions, self.trainings = IndexQueue(), IndexQueue()
        self.auxiliary = {task: IndexQueue() for task in predicted_tasks(replay)}
        self.replies = [Semaphore(one_at_a_time=True) for _ in range(self.max_agents)]
        self.free = [Semaphore(one_at_a_time=True) for _ in range(self.max_agents)]
        for free in self.free:
            free.release(slots_per_agent)
        self.starting: set[int] = set()  # agents that are launched but do not play yet
        self.num_wanted = config.num_envs
        self._signs = SignsOfLife(self.arrays["status"][:, Status.HEARTBEAT])
        self.num_retired = 0
        self._excluded_s = 0.0  # pauses that the agents' waits do not contain yet
        self._waited_s, self._waited_ns = 0.0, 0  # the mean wait so far; the agents' summed waits that it includes
        queues = (self.predictions, self.trainings, *self.auxiliary.values())
        fds = [self.memory.fd, *(fd for queue in queues for fd in queue.fds)]
        fds += [fd for semaphore in (*self.replies, *self.free) for fd in semaphore.fds]
        server = simulator_server("accel_rl.samplers.queued.agent:main", batch, sorted({*fds}))
        self._pool = ProcessPool("agent", server, self._place)
        try:
            self.set_members(range(config.num_envs))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> dict[int, Child]:
        return self._pool.children

    def set_members(self, agents: Collection[int]) -> None:
        """Sets which agents there are, before `start`; their environments are built when this returns."""
        for agent in self.processes.keys() - {*agents}:
            self._pool.remove(agent)
        self.num_wanted = len(agents)
        new = [agent for agent in agents if agent not in self.processes]
        for agent in new:
            self._launch(agent, starts=False)
        self._collect_replies("built", new)

    def start(self, states: dict[int, Any] | None = None) -> list[int]:
        """Lets all agents play, from these states if any. Returns the agents whose environments were restarted."""
        for agent in self.processes:
            self.processes[agent].send(states and states[agent])
        restarted = self._collect_replies("done", self.processes)
        self.starting.clear()
        return [agent for agent, is_new in restarted.items() if is_new]

    def get_states(self, check: Callable[[], None]) -> tuple[dict[int, Any], dict[int, RunError]]:
        """Returns the agents' states, and the errors of agents that fail meanwhile, which it kills.

        Call it while predictors and trainers are paused and no agent is starting. Agents that have retired are left
        out. check: called while it waits; raises if no answer can come any more."""
        states: dict[int, Any] = {}
        failed: dict[int, RunError] = {}
        for agent in self.processes:
            self.processes[agent].send("get_state")
        for agent in list(self.processes):
            try:
                states |= self._collect_replies("done", [agent], check)
            except RunError as error:
                check()
                self.processes[agent].kill()
                failed[agent] = error
        return states, failed

    def release_slot(self, slot: int) -> None:
        """Returns a slot to its agent, once its segment is copied."""
        self.arrays["state"][slot] = SlotState.FREE
        self.free[slot // self.slots_per_agent].release()

    def restore_slots(self, states: dict[int, int]) -> None:
        """Sets the states of slots, before `start`; all others are free."""
        self.arrays["state"][:] = SlotState.FREE
        for slot, state in states.items():
            self.arrays["state"][slot] = state
        for agent in range(self.max_agents):
            self._reset_semaphores(agent)

    # ---- their number ----

    @property
    def num_agents(self) -> int:
        """The number of agents that play and are not asked to retire."""
        return sum(not self.arrays["status"][agent, Status.RETIRES] for agent in self.processes)

    @property
    def replays_fill(self) -> bool:
        """True while an agent that plays draws nothing for auxiliary tasks yet, since its replay is not full."""
        status = self.arrays["status"][list(self.processes)]
        return bool((status[:, Status.FILLS] > status[:, Status.RETIRES]).any())

    def set_number(self, num_agents: int) -> None:
        """Starts agents, or asks those with the highest numbers to retire, until num_agents play.

        While agents retire, there may be no room for all new ones; `watch` starts the rest."""
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
        status[Status.FILLS] = self._replay is not None and self._replay.waits
        setup = AgentSetup(
            index=agent,
            spec=self._spec,
            batch=self._batch,
            memory=self.memory,
            predictions=self.predictions,
            trainings=self.trainings,
            auxiliary=self.auxiliary,
            replay=self._replay,
            replies=self.replies[agent],
            free=self.free[agent],
            starts=starts,
        )
        self._pool.launch(agent, setup)
        self.starting.add(agent)
        self._signs.restart(agent)

    # ---- watching ----

    def watch(self, paused: Callable[[], AbstractContextManager[list[int]]]) -> None:
        """Handles the agents' messages. Replaces dead and hung agents, or raises RunError for them (see `replace`).

        paused: pauses predictors and trainers; yields the slots whose segments are not copied yet."""
        for agent in list(self.processes):
            try:
                while agent in self.processes and self.processes[agent].control.poll():
                    self._receive(agent)
            except RunError as error:
                self.replace(agent, error, paused)
        if self.num_agents < self.num_wanted:
            self.set_number(self.num_wanted)
        for agent in self._find_hung():
            self.replace(agent, self._pool.hang_error(agent, *self._limit(agent)), paused)

    def _receive(self, agent: int) -> Message:
        """Handles and returns an agent's next message; removes a retired agent. Raises the error of a failed one."""
        kind, content = self._pool.receive(agent)
        if kind == "started":
            self.starting.discard(agent)
        elif kind == "retired":
            self.arrays["restarts"][agent] += 1  # the next agent of this number plays other games
            self.num_retired += 1
            self._pool.remove(agent)
        return kind, content

    def _find_hung(self) -> list[int]:
        waits = self.arrays["status"][:, Status.IS_WAITING] != 0
        waits[self._answered()] = False
        self._signs.look()
        self._signs.restart(waits)
        return [agent for agent in self.processes if self._signs.silent_s(agent) > self._limit(agent)[0]]

    def _answered(self) -> list[int]:
        """Returns the agents that have an unread answer."""
        agent_of = {self.replies[agent].fd: agent for agent in self.processes}
        return [agent_of[fd] for fd, _ in make_poller(*agent_of).poll(0)]

    def _limit(self, agent: int) -> tuple[float, str]:
        if agent in self.starting:
            return self._build_timeout_s, "--env-build-timeout-s"
        return self._timeout_s, "--env-timeout-s"

    def replace(self, agent: int, error: RunError, paused: Callable[[], AbstractContextManager[list[int]]]) -> None:
        """Replaces an agent that has failed. Raises its error instead if environments are not restarted, or if it had
        not begun to play.

        The segments that it has handed over are kept; its unfinished segment is lost. A retiring agent is only
        removed."""
        self.processes[agent].kill()
        if not self._batch.restart_on_error or agent in self.starting:
            raise error
        self._pool.report_loss(str(error).rstrip())
        with paused() as queued:
            self._pool.remove(agent)
            for slot in slots_of(agent, self.slots_per_agent):
                if slot not in queued:
                    self.arrays["state"][slot] = SlotState.FREE
            self._reset_semaphores(agent)
            self.arrays["restarts"][agent] += 1
            if not self.arrays["status"][agent, Status.RETIRES]:
                self._launch(agent, starts=True)

    def _reset_semaphores(self, agent: int) -> None:
        """Sets a dead agent's semaphores to the values that its successor expects."""
        for semaphore in (self.replies[agent], self.free[agent]):
            semaphore.drain()
        if num_free := len(free_slots(self.arrays["state"], agent, self.slots_per_agent)):
            self.free[agent].release(num_free)

    def _collect_replies(
        self, expected: str, agents: Iterable[int], check: Callable[[], None] = lambda: None
    ) -> dict[int, Any]:
        """Waits for a message of the expected kind from each agent; returns their contents, without retired agents.

        Raises RunError for an agent that shows no sign of life."""

        def watch(late: list[int]) -> None:
            check()
            self._signs.look()
            for agent in late:
                limit_s, flag = self._limit(agent)
                if self._signs.silent_s(agent) > limit_s:
                    raise self._pool.hang_error(agent, limit_s, flag)

        self._signs.restart()
        replies = self._pool.collect(expected, agents, self._receive, watch, POLL_S)
        self._signs.restart()
        return replies

    def _place(self, agent: int) -> str:
        """Describes which environment an agent plays, and with which action it was stepping it."""
        place = f"environment {self._batch.first_env + agent} (run seed {self._batch.seed}, {self._batch.env.env_id})"
        if agent in self.starting:
            return place
        slot, row = self.arrays["status"][agent, [Status.SLOT, Status.ROW]]
        return f"{place} at action {self.arrays['action'][slot, min(row, self.horizon - 1)]}"

    def read_waited_s(self) -> float:
        """Returns the seconds that an agent has waited for the learner so far, a mean over the agents at each time."""
        waited_ns = self.arrays["status"][:, Status.WAITED_NS].sum()
        waited_s = (waited_ns - self._waited_ns) / 1e9 / max(1, len(self.processes))
        excluded_s = min(waited_s, self._excluded_s)
        self._excluded_s -= excluded_s
        self._waited_s += waited_s - excluded_s
        self._waited_ns = waited_ns
        return self._waited_s

    def exclude(self, seconds: float) -> None:
        """Leaves a pause, such as an evaluation, out of the waits of the agents that are waiting at its end."""
        num_waiting = (self.arrays["status"][list(self.processes), Status.IS_WAITING] != 0).sum()
        self._excluded_s += seconds * num_waiting / max(1, len(self.processes))
        self._signs.restart()  # an agent whose answer came before the pause has not read it yet

    def close(self) -> None:
        """Ends all agents."""
        self._pool.close(EXIT_PATIENCE_S)
        for queue in (self.predictions, self.trainings, *self.auxiliary.values()):
            queue.close()
        for semaphore in (*self.replies, *self.free):
            semaphore.close()
        self.memory.close()
