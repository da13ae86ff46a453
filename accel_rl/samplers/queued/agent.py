"""An agent: a process that plays one environment, asks predictors for actions, and hands over segments. No torch here.

It follows GA3C's Algorithm 3 (Shirahata et al. 2018; Babaeizadeh et al. 2017, section 4.1), but keeps the terminal
reward. Its stage says what it does next:

    SLOT    waits for a free slot, begins a segment there, and asks for the action of its first row
    ACT     waits for the action of row t, and takes it. Then the segment goes on, or ends:
              after T steps   the request for the next segment's first row also brings the value after this segment
              terminated      the agent hands it over at once
              truncated       FINAL: the agent first waits for the value of the true last observation
"""

import contextlib
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from accel_rl.envs.batches.batch_simulator import BatchSimulator
from accel_rl.envs.batches.env_batch import BatchConfig, rollout_layout
from accel_rl.envs.global_generators import only_simulate
from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.shared_memory import Semaphore, SharedArrays, make_poller
from accel_rl.processes.child import reporting
from accel_rl.samplers.queued.agent_replay import AgentReplay, AgentReplayConfig
from accel_rl.samplers.queued.slots import Ending, IndexQueue, SlotState, Status, free_slots, request

SLOT, ACT, FINAL = "slot", "act", "final"  # stages


@dataclass(frozen=True)
class AgentSetup:
    """The first message to an agent, with all its settings.

    auxiliary: the prediction queue of each auxiliary task that has one; replay: the settings of its replay for these
    tasks. replies, free: semaphores that count the answers to its requests, and its free slots. starts: the agent
    plays at once, since the run is in progress; otherwise it waits for a message."""

    index: int
    spec: EnvSpec
    batch: BatchConfig
    memory: SharedArrays
    predictions: IndexQueue
    trainings: IndexQueue
    auxiliary: dict[str, IndexQueue]
    replay: AgentReplayConfig | None
    replies: Semaphore
    free: Semaphore
    starts: bool = False


class Agent:
    """Plays one environment until the learner retires it or hangs up (EOFError)."""

    def __init__(self, setup: AgentSetup, control: "Connection[Any, Any]"):
        self._setup, self._control = setup, control
        self._arrays = setup.memory.arrays
        self._horizon = self._arrays["reward"].shape[1]
        self._slots_per_agent = len(self._arrays["state"]) // len(self._arrays["status"])
        self._status = memoryview(self._arrays["status"][setup.index])
        self._request_number = request(setup.index, self._status[Status.GENERATION])
        self._heartbeats, self._waited_ns = self._status[Status.HEARTBEAT], self._status[Status.WAITED_NS]
        # One step of one environment: row 0 is the observation before it, row 1 the one after it.
        layout = rollout_layout(setup.spec, 1, 1)
        self._step_arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        self._step_arrays["restarts"][0] = self._arrays["restarts"][setup.index]
        self._batch = BatchSimulator(setup.batch, self._step_arrays, setup.index, self._heartbeat)
        self._history = setup.spec.history
        self._row = self._step_arrays["observation"][self._history, 0, ...]
        self._pollers = {
            semaphore.fd: make_poller(control.fileno(), semaphore.fd) for semaphore in (setup.replies, setup.free)
        }
        self._silent_poller = make_poller(setup.replies.fd)  # ignores messages, but notices if the learner is gone
        self._silent_poller.register(control.fileno(), 0)
        self._stage = SLOT
        self._slot, self._t, self._previous = -1, 0, -1
        self._ended_at = 0  # number of steps of the last segment
        self._is_cut_off = False  # True: a resumed run had to restart the environment
        self._last_action = np.zeros(setup.spec.action_shape, setup.spec.action_dtype)[()]
        self._last_reward = 0.0
        self._replay: AgentReplay | None = None
        if setup.replay:
            spawn_key = (setup.index, int(self._arrays["restarts"][setup.index]))
            seed = np.random.SeedSequence(setup.replay.seed, spawn_key=spawn_key)
            self._replay = AgentReplay(setup.spec, setup.replay, np.random.default_rng(seed))

    # ---- playing ----

    def start(self) -> None:
        """Starts the environment, with its random number of random actions."""
        self._batch.start()
        self._batch.begin()
        self._arrays["restarts"][self._setup.index] = self._step_arrays["restarts"][0]

    def run(self) -> None:
        """Plays until the learner retires the agent; all its steps are handed over when this returns."""
        if self._is_cut_off:
            self._drop_unfinished()
        if self._stage != SLOT:  # the run is resumed, and the request was not answered yet
            self._request(is_final=self._stage == FINAL)
        while True:
            if self._stage == SLOT:
                self._wait(self._setup.free)
                self._begin_segment()
            elif self._stage == FINAL:
                self._wait(self._setup.replies)
                self._end_segment(Ending.TRUNCATED)
            else:
                self._wait(self._setup.replies)
                if self._previous >= 0:
                    self._hand_over(self._previous)
                    self._previous = -1
                if self._status[Status.RETIRES]:
                    return self._cut_segment()
                self._step()

    def _begin_segment(self) -> None:
        """Begins a segment in a free slot, with the current observation as first row, after its history."""
        arrays, before = self._arrays, self._slot
        slot = free_slots(arrays["state"], self._setup.index, self._slots_per_agent)[0]
        arrays["state"][slot] = SlotState.WRITING
        if self._history and before >= 0:
            seen = arrays["observation"][before, self._ended_at : self._ended_at + self._history].copy()
            arrays["observation"][slot, : self._history] = seen
        arrays["game_length"][slot] = 0
        self._slot, self._t, self._stage = slot, 0, ACT
        self._write_row()
        self._request()

    def _write_row(self) -> None:
        """Writes the current observation, before step t, into the slot."""
        arrays, slot, t = self._arrays, self._slot, self._t
        arrays["observation"][slot, self._history + t] = self._row
        arrays["age"][slot, t] = self._step_arrays["age"][0, 0]
        arrays["reset"][slot, t] = self._step_arrays["reset"][0, 0]
        arrays["previous_action"][slot, t] = self._last_action
        arrays["previous_reward"][slot, t] = self._last_reward

    def _step(self) -> None:
        """Takes the action of row t; then the segment continues or ends."""
        arrays, step, slot, t = self._arrays, self._step_arrays, self._slot, self._t
        action = step["action"][0, 0] = arrays["action"][slot, t]
        self._batch.step(0)
        if not step["valid"][0, 0]:  # the environment has failed, and is replaced now
            self._renew()
            return self._cut_segment()
        terminated, truncated = bool(step["terminated"][0, 0]), bool(step["truncated"][0, 0])
        self._last_action, self._last_reward = action, float(step["reward"][0, 0])
        arrays["reward"][slot, t] = self._last_reward
        if step["game_length"][0, 0]:
            arrays["game_length"][slot] = step["game_length"][0, 0]
            arrays["game_score"][slot] = step["game_score"][0, 0]
        if self._replay:
            age, reset = int(step["age"][0, 0]), bool(step["reset"][0, 0])
            last_row = step["final_observation"][0, 0]
            self._replay.append(self._row, age, action, self._last_reward, terminated, truncated, reset, last_row)
        if truncated and not terminated:
            arrays["observation"][slot, self._history + t + 1] = step["final_observation"][0, 0]
            arrays["age"][slot, t + 1] = step["age"][0, 0] + 1
        self._renew()
        self._t = t + 1
        if terminated:
            self._end_segment(Ending.TERMINATED)
        elif truncated:
            arrays["previous_action"][slot, t + 1], arrays["previous_reward"][slot, t + 1] = action, self._last_reward
            arrays["reset"][slot, t + 1] = False
            self._stage = FINAL
            self._request(is_final=True)
        elif t + 1 == self._horizon:
            self._write_row()
            self._previous = slot
            self._end_segment(Ending.FULL)
        else:
            self._write_row()
            self._request()

    def _renew(self) -> None:
        """Makes the observation after this step the one before the next step."""
        step = self._step_arrays
        self._row[...] = step["observation"][self._history + 1, 0]
        step["age"][0, 0], step["reset"][0, 0] = step["age"][1, 0], step["reset"][1, 0]
        self._batch.pause()
        self._batch.begin()
        self._arrays["restarts"][self._setup.index] = step["restarts"][0]

    def _end_segment(self, ending: Ending) -> None:
        """Ends the segment after step t - 1; hands it over unless it still lacks a value."""
        self._arrays["num_steps"][self._slot] = self._ended_at = self._t
        self._arrays["ending"][self._slot] = ending
        if ending != Ending.FULL:
            self._hand_over(self._slot)
        self._stage = SLOT

    def _cut_segment(self) -> None:
        """Ends the segment before step t, for which only the prediction is known."""
        if self._t:
            self._end_segment(Ending.CUT)
        else:  # it has no step
            self._arrays["state"][self._slot] = SlotState.FREE
            self._setup.free.release()
            self._ended_at, self._stage = 0, SLOT

    # ---- the learner ----

    def _request(self, is_final: bool = False) -> None:
        """Asks for action and value of row t; is_final: for the value alone."""
        status = self._status
        status[Status.SLOT], status[Status.ROW], status[Status.IS_FINAL] = self._slot, self._t, is_final
        status[Status.PREVIOUS] = self._previous
        self._setup.predictions.put([self._request_number])

    def _hand_over(self, slot: int) -> None:
        """Puts a segment into the training queue, with draws from the replay for the auxiliary tasks."""
        if self._replay:
            self._status[Status.DRAWN_INTO], self._status[Status.FILLS] = slot, self._replay.fills
            drawn = {name: array[slot, ...] for name, array in self._arrays.items() if "/" in name}
            self._replay.draw(drawn, self._predict)
        self._arrays["state"][slot] = SlotState.QUEUED
        self._setup.trainings.put([slot])

    def _predict(self, task: str) -> None:
        """Asks for the value after the sequence that was drawn for an auxiliary task, and waits for it."""
        self._setup.auxiliary[task].put([self._request_number])
        self._wait(self._setup.replies, answers=False)

    def _wait(self, semaphore: Semaphore, answers: bool = True) -> None:
        """Waits for a token. answers: replies to the learner's messages meanwhile, rather than at the next wait."""
        if semaphore.try_acquire():
            return
        start = time.perf_counter_ns()
        self._status[Status.IS_WAITING] = True
        poller = self._pollers[semaphore.fd] if answers else self._silent_poller
        while not semaphore.try_acquire():
            ready = [fd for fd, _ in poller.poll()]
            if self._control.fileno() in ready and semaphore.fd not in ready:
                message = self._control.recv()  # raises EOFError if the learner is gone
                if answers and message == "get_state":
                    self._control.send(("done", self.get_state()))
        self._heartbeat()
        self._status[Status.IS_WAITING] = False
        self._waited_ns += time.perf_counter_ns() - start
        self._status[Status.WAITED_NS] = self._waited_ns

    def _heartbeat(self, env: int = 0) -> None:
        self._heartbeats += 1
        self._status[Status.HEARTBEAT] = self._heartbeats

    def close(self) -> None:
        """Closes the environment, which may have resources to release."""
        self._batch.close()

    # ---- checkpoints ----

    def get_state(self) -> dict[str, Any]:
        """Returns, during a wait, the agent's state except its slots."""
        step = self._step_arrays
        return {
            "env": self._batch.get_state()[0],
            "row": self._row.copy(),
            "age": int(step["age"][0, 0]),
            "reset": bool(step["reset"][0, 0]),
            "stage": self._stage,
            "place": (self._slot, self._t, self._previous, self._ended_at),
            "last": (self._last_action, self._last_reward),
            "replay": self._replay.get_state() if self._replay and self._replay.config.in_checkpoints else None,
        }

    def set_state(self, state: dict[str, Any]) -> bool:
        """Continues from get_state's result, instead of `start`.

        Returns whether the environment had to be restarted. If so, `run` drops the segment in progress."""
        self._slot, self._t, self._previous, self._ended_at = state["place"]
        self._last_action, self._last_reward = state["last"]
        self._stage = state["stage"]
        if self._replay and state["replay"]:
            self._replay.set_state(state["replay"])
        step = self._step_arrays
        step["restarts"][0] = self._arrays["restarts"][self._setup.index]
        self._row[...] = state["row"]
        step["age"][0, 0], step["reset"][0, 0] = state["age"], state["reset"]
        self._is_cut_off = bool(self._batch.set_state([state["env"]]))
        self._batch.begin()  # reads the age; writes a new game's first row if there is one
        return self._is_cut_off

    def _drop_unfinished(self) -> None:
        """Drops the steps whose future was lost with the environment: those of the segment in progress, and the last
        step of a full segment that still lacks the value after it."""
        if self._previous >= 0:
            slot, stage = self._slot, self._stage
            self._slot, self._t = self._previous, self._horizon - 1
            self._cut_segment()
            self._slot, self._stage, self._previous = slot, stage, -1
        if self._stage == ACT:
            self._t = 0
            self._cut_segment()


def main(fd: int) -> None:
    """Runs an agent from its first message to its last, in a process forked for it. fd: its connection's descriptor."""
    control: Connection[Any, Any] = Connection(fd)
    with reporting(control):
        only_simulate()
        setup: AgentSetup = control.recv()
        agent = Agent(setup, control)
        try:
            control.send(("built", None))
            _start(agent, setup, control)
            agent.run()
        finally:
            with contextlib.suppress(Exception):
                agent.close()
        control.send(("retired", None))


def _start(agent: Agent, setup: AgentSetup, control: "Connection[Any, Any]") -> None:
    """Starts the agent's environment, or continues from the state that the learner sends."""
    if setup.starts:
        agent.start()
        return control.send(("started", None))
    state = control.recv()
    if state is None:
        agent.start()
        control.send(("done", False))
    else:
        control.send(("done", agent.set_state(state)))
