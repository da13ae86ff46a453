"""GA3C's way to sample: agents ask predictors for actions, trainers merge what the agents have seen into batches.

Predictors and trainers are threads of this process. Learning itself is the caller's, between two calls of `collect`, so
one thread at a time holds forward pass, backward pass and step; trainers prepare the next batches meanwhile. What a
batch learns from was chosen with parameters of different ages: each step carries the number of batches that had been
learned from by then, and the difference is the policy lag (Babaeizadeh et al. 2017, section 4.4).
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from accel_rl.config.queues import AgentReplayConfig
from accel_rl.envs.batch_simulator import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.host_memory import used_share
from accel_rl.hardware.placement import default_workers
from accel_rl.hardware.topology import read_topology
from accel_rl.rollout import Game, Policy, Rollout
from accel_rl.samplers.alternating import AlternatingSampler
from accel_rl.samplers.base import EnvsToUpdate, GamesToPlay, OnStep, SamplerConfig, noise_generator
from accel_rl.samplers.queued.adjustment import Adjuster, Counts
from accel_rl.samplers.queued.agent_pool import AgentPool
from accel_rl.samplers.queued.agent_replay import auxiliary_layout
from accel_rl.samplers.queued.batches import SegmentBatch
from accel_rl.samplers.queued.meter import Meter
from accel_rl.samplers.queued.predictor import PredictionServer
from accel_rl.samplers.queued.slots import SlotState, agents_of, shared_layout, wait_for_any
from accel_rl.samplers.queued.threads import Gate, Loop

POLL_S = 0.1  # how long a thread waits before it looks whether it is to stop
WATCH_S = 0.1  # how often the agents are looked after
MOST_THREADS = 16  # predictors, and trainers, that adjustment may start: as many as the paper has tried


@dataclass(frozen=True)
class QueueConfig:
    """How the queued sampler runs, besides what is common to all samplers.

    places: of each agent in the training queue. max_agents: that there may ever be (None: as many as at the start).
    threads: of torch, in each predictor. deterministic: nothing depends on the time that anything takes: all agents'
    requests are waited for and served together, in order, and no prediction is made while a batch is learned from.
    adjustment_interval_s: the numbers of agents, predictors and trainers are adjusted while they run, in windows of so
    many seconds, to raise trainings or predictions per second (None: they stay).
    """

    num_predictors: int = 2
    num_trainers: int = 2
    prediction_batch: int = 128
    min_training_batch: int = 1
    places: int = 3
    max_agents: int | None = None
    threads: int = 1
    deterministic: bool = False
    adjustment_interval_s: float | None = None
    adjustment_objective: str = "trainings"


class QueuedSampler:
    """Plays config.num_envs environments in as many agents; its rollouts are merged from their segments.

    Raises UsageError or RunError if an environment cannot be built. Every method that waits raises RunError if an agent
    or a thread fails. `close` ends them."""

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        policy: Policy,
        config: SamplerConfig,
        device: str | torch.device = "cpu",
        queues: QueueConfig | None = None,
        replay: AgentReplayConfig | None = None,
    ):
        self.spec, self.policy, self.config = spec, policy, config
        self.batch = replace(batch, terminal_frames=replay is not None)
        self.queues = queues = queues or QueueConfig()
        self.device = torch.device(device)
        self.seconds = {"env_wait": 0.0, "inference": 0.0, "action_wait": 0.0}
        self.bytes_moved = 0
        # In a round of deterministic ones, an agent may fill two slots before it asks for the action of a third.
        max_agents, slots_per_agent = queues.max_agents or config.num_envs, 1 + queues.places
        slots_per_agent = max(slots_per_agent, 3 if queues.deterministic else 2)
        drawn = auxiliary_layout(spec, replay) if replay else None
        layout = shared_layout(spec, config.horizon, max_agents * slots_per_agent, max_agents, drawn)
        self._pool = AgentPool(
            spec,
            self.batch,
            layout,
            config.num_envs,
            slots_per_agent,
            config.env_timeout_s,
            config.env_build_timeout_s,
            replay,
        )
        try:
            generator = noise_generator(batch, self.device)
            arrays, replies = self._pool.arrays, self._pool.replies
            self._server = PredictionServer(spec, arrays, replies, policy, generator, self.device)
        except BaseException:
            self._pool.close()
            raise
        self._held: deque[int] = deque()  # requests that have been taken from the queue and not been served
        self._queued: deque[int] = deque()  # slots that have been taken from the queue and not been copied
        # Batches that no trainer is filling, partly filled ones first: one for each trainer, and the one learned from.
        self._open = [self._new_batch() for _ in range(1 if queues.deterministic else queues.num_trainers + 1)]
        self._filling: dict[int, SegmentBatch] = {}  # by trainer
        self._complete: deque[SegmentBatch] = deque()
        self._learned: SegmentBatch | None = None  # shown by the last rollout
        self._changed = threading.Condition()  # of all these lists
        self._gate, self._auxiliary_gate = Gate(), Gate()
        self._predictors: list[Loop] = []
        self._trainers: list[Loop] = []
        self._auxiliary_predictors: dict[str, list[Loop]] = {task: [] for task in self._pool.auxiliary}
        self._error: BaseException | None = None
        self._started = False
        self._next_watch = self._next_memory_reading = 0.0
        self._memory_share = 0.0
        self._num_learned = 0
        self._steps_done = 0
        self._meter = Meter()
        self.adjuster: Adjuster | None = None
        if queues.adjustment_interval_s:
            start = Counts(config.num_envs, queues.num_predictors, queues.num_trainers)
            limits = Counts(max_agents, *(max(MOST_THREADS, number) for number in start[1:]))
            self.adjuster = Adjuster(start, limits, batch.seed, queues.adjustment_interval_s)

    # ---- what every sampler has ----

    @property
    def num_restarts(self) -> int:
        return int(self._pool.arrays["restarts"].sum())

    def collect(
        self,
        on_step: OnStep | None = None,
        every: int = 1,
        first_step: int | None = None,
        envs_to_update: EnvsToUpdate | None = None,
    ) -> Rollout:
        """Returns the next batch, as a rollout with a column for each segment (see `Rollout`).

        Predictors act with the policy's present parameters from now on. Raises UsageError for an on_step: there are no
        steps that all environments take together."""
        if on_step or envs_to_update:
            raise UsageError("sampler=queued has no steps between which to learn; use --sampler alternating")
        self._steps_done = self._steps_done if first_step is None else first_step
        self._start()
        if self._learned:
            self._num_learned += 1
            self._reuse(self._learned)
            self._learned = None
        self._server.copies.publish(self._num_learned)
        start = time.perf_counter()
        batch = self._learned = self._play_rounds() if self.queues.deterministic else self._wait_for_batch()
        self.seconds["env_wait"] += time.perf_counter() - start
        self.seconds["inference"] = self._server.counts.seconds
        self.seconds["action_wait"] = self._pool.waited_s
        rollout = batch.rollout(self._steps_done)
        self._steps_done += batch.num_steps
        self._meter.add(batch, self._num_learned, len(self._pool.predictions), self._num_queued)
        self._adjust()
        return rollout

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        raise UsageError("sampler=queued keeps no window of earlier steps; use --sampler alternating")

    def evaluate(self, games: GamesToPlay, index: int, greedy: bool, policy: Policy | None = None) -> list[Game]:
        """Returns whole games, played in workers of their own, as those of AlternatingSampler; agents pause."""
        num_envs = self.config.evaluation_envs + self.config.evaluation_envs % 2
        num_workers = default_workers(num_envs, read_topology().num_busy)
        config = replace(
            self.config,
            num_envs=2 * num_workers,  # these stay unused
            num_workers=num_workers,
            num_evaluation_envs=num_envs,
            worker_cpus=None,
        )
        with self._gate.closed():
            sampler = AlternatingSampler(self.spec, self.batch, policy or self.policy, config, self.device)
            try:
                return sampler.evaluate(games, index, greedy, policy or self.policy)
            finally:
                sampler.close()
                if self.adjuster:
                    self.adjuster.interrupt()

    def close(self) -> None:
        auxiliary = [loop for loops in self._auxiliary_predictors.values() for loop in loops]
        loops = [*self._predictors, *self._trainers, *auxiliary]
        for loop in loops:
            loop.stop()
        with self._changed:
            self._error = self._error or RunError("closed")
            self._changed.notify_all()
        for loop in loops:
            loop.join()
        self._pool.close()

    # ---- predictors and trainers ----

    def _start(self, states: dict[int, Any] | None = None) -> list[int]:
        """Starts agents, from these states if there are any, and threads."""
        if self._started:
            return []
        self._started = True
        restarted = self._pool.start(states)
        self._set_threads(self.queues.num_predictors, self.queues.num_trainers)
        if self.adjuster and states:
            self.set_counts(*self.adjuster.counts)
        return restarted

    def _set_threads(self, num_predictors: int, num_trainers: int) -> None:
        """Starts or ends predictors (of each kind) and trainers until there are so many."""
        if self.queues.deterministic:
            return
        while len(self._predictors) < num_predictors:
            self._predictors.append(Loop("predictor", self._predict, self._fail))
        while len(self._trainers) < num_trainers:
            self._trainers.append(Loop("trainer", self._train, self._fail))
        gone = self._predictors[num_predictors:] + self._trainers[num_trainers:]
        for task, loops in self._auxiliary_predictors.items():
            while len(loops) < num_predictors:
                loops.append(Loop(f"{task} predictor", partial(self._predict_auxiliary, task), self._fail))
            gone += loops[num_predictors:]
            del loops[num_predictors:]
        del self._predictors[num_predictors:], self._trainers[num_trainers:]
        for loop in gone:
            loop.stop()
        with self._changed:
            self._changed.notify_all()
        for loop in gone:
            loop.join()
            if batch := self._filling.pop(loop.ident, None):
                self._open.insert(0, batch)

    def _fail(self, error: BaseException) -> None:
        """Hands a thread's exception to the learner."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _predict(self) -> None:
        """A predictor's work: serves the requests that there are."""
        self._set_torch_threads()
        if not self._held and not self._pool.predictions.wait(POLL_S):
            return
        with self._gate.working():
            if agents := self._take_requests():
                self._server.serve(agents)

    def _predict_auxiliary(self, task: str) -> None:
        """An auxiliary predictor's work; it goes on while agents are asked for their states."""
        self._set_torch_threads()
        if self._pool.auxiliary[task].wait(POLL_S):
            with self._auxiliary_gate.working():
                self._serve_auxiliary(task)

    def _serve_auxiliary(self, task: str) -> None:
        requests = self._pool.auxiliary[task].get(self.queues.prediction_batch)
        if agents := sorted(agents_of(requests, self._pool.arrays["status"])):
            self._server.serve_auxiliary(task, agents)

    def _set_torch_threads(self) -> None:
        """Sets the number of torch's threads that this thread uses."""
        if torch.get_num_threads() != self.queues.threads:
            torch.set_num_threads(self.queues.threads)

    def _take_requests(self) -> list[int]:
        """Returns the agents whose requests wait, at most as many as a predictor serves at once."""
        most = self.queues.prediction_batch
        with self._changed:
            requests = [self._held.popleft() for _ in range(min(most, len(self._held)))]
        requests += self._pool.predictions.get(most - len(requests))
        return agents_of(requests, self._pool.arrays["status"])

    def _train(self) -> None:
        """A trainer's work: copies the next segment into its batch."""
        if not self._queued and not self._pool.trainings.wait(POLL_S):
            return
        me = threading.get_ident()
        batch = self._filling.get(me) or self._take_batch(me)
        if not batch:
            return
        with self._gate.working():
            if self._merge(batch):
                with self._changed:
                    del self._filling[me]
                    self._complete.append(batch)
                    self._changed.notify_all()

    def _take_batch(self, me: int) -> SegmentBatch | None:
        """Returns a batch to fill, once there is one; None if there is none yet."""
        with self._changed:
            if not self._open:
                self._changed.wait(POLL_S)
            if not self._open:
                return None
            batch = self._filling[me] = self._open.pop(0)
            return batch

    def _merge(self, batch: SegmentBatch) -> bool:
        """Copies the next segment, if there is one, into the batch; returns whether that is complete now."""
        with self._changed:
            if not self._queued:
                self._queued.extend(self._pool.trainings.get(self._pool.max_agents))
            slot = self._queued.popleft() if self._queued else None
        if slot is None:
            return False
        batch.add(slot, slot // self._pool.slots_per_agent)
        self._pool.release_slot(slot)
        return batch.is_complete

    def _new_batch(self) -> SegmentBatch:
        return SegmentBatch(self.spec, self._server, self.queues.min_training_batch, self.device)

    def _reuse(self, batch: SegmentBatch) -> None:
        """Empties a batch that has been learned from; drops it where there are enough without it."""
        batch.clear()
        with self._changed:
            if len(self._open) + len(self._filling) + len(self._complete) <= self.queues.num_trainers:
                self._open.append(batch)
            self._changed.notify_all()

    def _wait_for_batch(self) -> SegmentBatch:
        """Waits until a trainer has completed a batch."""
        while True:
            with self._changed:
                if self._error:
                    raise self._error
                if not self._complete:
                    self._changed.wait(WATCH_S)
                batch = self._complete.popleft() if self._complete else None
            self._watch()
            if batch:
                return batch

    def _watch(self) -> None:
        """Looks after the agents, now and then."""
        if time.monotonic() >= self._next_watch:
            self._pool.watch(self._paused)
            self._next_watch = time.monotonic() + WATCH_S

    @contextmanager
    def _paused(self) -> Iterator[list[int]]:
        """Pauses predictors and trainers; gives the slots that the trainers have still to copy."""
        with self._gate.closed(), self._auxiliary_gate.closed():
            self._held.extend(self._pool.predictions.get(2 * self._pool.max_agents))
            self._queued.extend(self._pool.trainings.get(len(self._pool.arrays["state"])))
            yield list(self._queued)

    @property
    def _num_queued(self) -> int:
        """Segments in the training queue."""
        return int(np.count_nonzero(self._pool.arrays["state"] == SlotState.QUEUED))

    # ---- measuring and adjusting ----

    def read_metrics(self) -> dict[str, float]:
        """Returns what has been measured since the last call (see `Meter.read`), and the numbers of everything."""
        return self._meter.read(self._server.counts) | {
            "agents": self._pool.num_agents,
            "predictors": self.queues.num_predictors,
            "trainers": self.queues.num_trainers,
        }

    def set_counts(self, num_agents: int, num_predictors: int, num_trainers: int) -> None:
        """Changes the numbers of agents, predictors and trainers while they run.

        An agent that has to go hands over its unfinished segment first."""
        self._start()
        more = num_trainers - self.queues.num_trainers
        self.queues = replace(self.queues, num_predictors=num_predictors, num_trainers=num_trainers)
        for _ in range(more):
            self._reuse(self._new_batch())
        self._set_threads(num_predictors, num_trainers)
        self._pool.set_number(num_agents)

    def _adjust(self) -> None:
        """Lets the adjuster see how much has been done, and changes the numbers as it says."""
        if not self.adjuster:
            return
        now = time.monotonic()
        if now >= self._next_memory_reading:
            self._memory_share, self._next_memory_reading = used_share(), now + 1.0
        is_trainings = self.queues.adjustment_objective == "trainings"
        total = self._num_learned if is_trainings else self._server.counts.predictions
        if counts := self.adjuster.advance(now, total, self._memory_share):
            self.set_counts(*counts)

    # ---- deterministic ----

    def _play_rounds(self) -> SegmentBatch:
        """Fills a batch: each round, all agents' requests are waited for, and then served in order."""
        batch = self._open.pop(0)
        while True:
            while len(self._held) < len(self._pool.processes):
                self._watch()
                wait_for_any([self._pool.predictions, *self._pool.auxiliary.values()], POLL_S)
                for task in self._pool.auxiliary:
                    self._serve_auxiliary(task)
                self._held.extend(self._pool.predictions.get(self._pool.max_agents))
            self._queued.extend(sorted(self._pool.trainings.get(len(self._pool.arrays["state"]))))
            while self._queued:
                if self._merge(batch):
                    return batch
            agents = sorted(agents_of(list(self._held), self._pool.arrays["status"]))
            self._held.clear()
            for first in range(0, len(agents), self.queues.prediction_batch):
                self._server.serve(agents[first : first + self.queues.prediction_batch])

    # ---- checkpoints ----

    def get_state(self) -> dict[str, Any]:
        """Returns, between two rollouts, what the next one continues from, what waits in the queues included."""
        self._start()
        while self._pool.is_starting:
            self._pool.watch(self._paused)
            time.sleep(POLL_S)
        with self._gate.closed():
            arrays = self._pool.arrays
            agents, failed = self._pool.get_states()
            self._queued.extend(self._pool.trainings.get(len(arrays["state"])))
            for agent, error in failed.items():
                self._pool.replace(agent, error, lambda: nullcontext(list(self._queued)))
                if agent in self._pool.processes:
                    agents[agent] = None  # starts anew
            slots = np.flatnonzero(arrays["state"] != SlotState.FREE).tolist()
            return {
                "agents": agents,
                "slots": {slot: int(arrays["state"][slot]) for slot in slots},
                "arrays": {name: a[slots] for name, a in arrays.items() if name not in ("status", "restarts", "state")},
                "restarts": arrays["restarts"].copy(),
                "queued": list(self._queued),
                "server": self._server.get_state(slots),
                "complete": [batch.get_state() for batch in self._complete],
                "open": [b.get_state() for b in (*self._filling.values(), *self._open) if b.num_segments],
                "num_learned": self._num_learned + (self._learned is not None),
                "steps_done": self._steps_done,
                "adjuster": self.adjuster and self.adjuster.get_state(),
            }

    def set_state(self, state: dict[str, Any]) -> list[int]:
        """Continues from get_state's result, before the first rollout; returns the environments that start anew."""
        arrays, slots = self._pool.arrays, list(state["slots"])
        self._pool.set_members(state["agents"])
        self._pool.restore_slots(state["slots"])
        for name, values in state["arrays"].items():
            arrays[name][slots] = values
        arrays["restarts"][: len(state["restarts"])] = state["restarts"]
        self._server.set_state(state["server"], slots)
        self._queued.extend(state["queued"])
        self._complete.extend(self._restored(each) for each in state["complete"])
        self._open = [*(self._restored(each) for each in state["open"]), *self._open]
        self._num_learned, self._steps_done = state["num_learned"], state["steps_done"]
        if self.adjuster and state["adjuster"]:
            self.adjuster.set_state(state["adjuster"])
        restarted = self._start(state["agents"])
        return [self.batch.first_env + agent for agent in restarted]

    def _restored(self, state: dict[str, Any]) -> SegmentBatch:
        batch = self._new_batch()
        batch.set_state(state)
        return batch
