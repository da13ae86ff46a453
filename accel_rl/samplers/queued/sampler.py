"""Samples as GA3C does: agents ask predictors for actions, and trainers merge the agents' segments into batches.

Predictors and trainers are threads of this process. The caller learns between two calls of `collect`, in one thread;
meanwhile trainers prepare the next batches. The actions of a batch were chosen with parameters of different ages. Each
step carries the number of batches that the learner had learned from by then. The difference is the policy lag
(Babaeizadeh et al. 2017, section 4.4).
"""

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.hardware.host_memory import used_share
from accel_rl.hardware.placement import default_workers
from accel_rl.hardware.topology import read_topology
from accel_rl.rollout import Game, Policy, Rollout
from accel_rl.samplers.alternating import AlternatingSampler
from accel_rl.samplers.base import NO_HOOK, GamesToPlay, SamplerConfig, StepHook, noise_generator
from accel_rl.samplers.queued.adjustment import Adjuster, Counts
from accel_rl.samplers.queued.agent_pool import AgentPool
from accel_rl.samplers.queued.agent_replay import AgentReplayConfig, auxiliary_layout
from accel_rl.samplers.queued.batches import SegmentBatch
from accel_rl.samplers.queued.crew import Crew
from accel_rl.samplers.queued.kind import QueueSettings
from accel_rl.samplers.queued.meter import Meter
from accel_rl.samplers.queued.predictor import PredictionServer
from accel_rl.samplers.queued.slots import SlotState, shared_layout

WATCH_S = 0.1  # time between two checks of the agents
MAX_THREADS = 16  # the most predictors, and trainers, that adjustment starts: the paper tried no more


class QueuedSampler:
    """A sampler with an agent for each of config.num_envs environments; it merges their segments into rollouts.

    threads: torch's threads in each predictor. replay: settings of each agent's replay, if the agents keep any.
    deterministic: no result depends on time. The sampler waits for the requests of all agents and serves them together,
    in order, and never while the learner works.
    Raises UsageError or RunError if an environment cannot be built. Every method that waits raises RunError if an agent
    or a thread fails. `close` ends agents and threads."""

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        policy: Policy,
        config: SamplerConfig,
        device: str | torch.device = "cpu",
        *,
        queues: QueueSettings,
        threads: int = 1,
        deterministic: bool = False,
        replay: AgentReplayConfig | None = None,
    ):
        even = config.evaluation_envs + config.evaluation_envs % 2  # an AlternatingSampler has two groups
        self.spec, self.policy, self.config = spec, policy, replace(config, num_evaluation_envs=even)
        self.batch = replace(batch, terminal_frames=replay is not None)
        self.queues, self._deterministic = queues, deterministic
        self.device = torch.device(device)
        self.seconds = {"env_wait": 0.0, "inference": 0.0, "action_wait": 0.0}
        self.bytes_moved = 0
        max_agents, slots_per_agent = queues.max_agents or config.num_envs, 1 + queues.training_queue
        if deterministic:  # in a round, an agent may fill two slots before it asks for the action of a third
            slots_per_agent = max(slots_per_agent, 3)
        drawn = auxiliary_layout(spec, replay) if replay else None
        layout = shared_layout(spec, config.horizon, max_agents * slots_per_agent, max_agents, drawn)
        self.pool = AgentPool(spec, self.batch, layout, config, slots_per_agent, replay)
        try:
            generator = noise_generator(batch, self.device)
            arrays, replies = self.pool.arrays, self.pool.replies
            self._server = PredictionServer(spec, arrays, replies, policy, generator, self.device)
            least = queues.min_training_batch or config.num_envs * config.horizon
            self._new_batch = partial(SegmentBatch, spec, self._server, least, self.device)
            self.crew = Crew(self.pool, self._server, self._new_batch, queues.prediction_batch, threads)
        except BaseException:
            self.pool.close()
            raise
        self._learned: SegmentBatch | None = None  # the memory of the last rollout
        self._started = False
        self._next_watch = self._next_memory_reading = 0.0
        self._memory_share = 0.0
        self._num_learned = 0
        self._steps_done = 0
        self._meter = Meter()
        self.adjuster: Adjuster | None = None
        self._paused_at: tuple[float, int] | None = None  # the time, and the objective's total by then
        if queues.dynamic_adjustment:
            start = Counts(config.num_envs, queues.predictors, queues.trainers)
            limits = Counts(max_agents, *(max(MAX_THREADS, number) for number in start[1:]))
            self.adjuster = Adjuster(start, limits, batch.seed, queues.adjustment_interval_s)

    # ---- what every sampler has ----

    @property
    def num_restarts(self) -> int:
        return int(self.pool.arrays["restarts"].sum()) - self.pool.num_retired

    def collect(self, hook: StepHook = NO_HOOK, first_step: int | None = None) -> Rollout:
        """Returns the next batch, as a rollout with a column for each segment (see `Rollout`).

        From now on, predictors act with the policy's current parameters. Raises UsageError for a hook, since agents do
        not take their steps together."""
        if hook.on_step:
            raise UsageError("sampler=queued cannot learn between the steps of a rollout; use --sampler alternating")
        self._steps_done = self._steps_done if first_step is None else first_step
        self._start()
        self._continue_adjustment()
        if self._learned:
            self._num_learned += 1
            self.crew.reuse(self._learned)
            self._learned = None
        self._server.copies.publish(self._num_learned)
        start = time.perf_counter()
        fill = partial(self.crew.fill_in_rounds, self._watch) if self._deterministic else self._wait_for_batch
        batch = self._learned = fill()
        self.seconds["env_wait"] += time.perf_counter() - start
        self.seconds["inference"] = self._server.counts.seconds
        self.seconds["action_wait"] = self.pool.read_waited_s()
        rollout = batch.rollout(self._steps_done)
        self._steps_done += batch.num_steps
        num_queued = int(np.count_nonzero(self.pool.arrays["state"] == SlotState.QUEUED))
        self._meter.add(batch, self._num_learned, len(self.pool.predictions), num_queued)
        self._adjust()
        return rollout

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        raise UsageError("sampler=queued keeps no window of earlier steps; use --sampler alternating")

    def evaluate(self, games: GamesToPlay, index: int, greedy: bool, policy: Policy | None = None) -> list[Game]:
        """Returns whole games, which a separate AlternatingSampler plays while agents pause."""
        num_workers = default_workers(self.config.evaluation_envs, read_topology().num_busy)
        # Each worker needs two environments for training, which stay unused.
        config = replace(self.config, num_envs=2 * num_workers, num_workers=num_workers, worker_cpus=None)
        self._pause_adjustment()
        start = time.perf_counter()
        with self.crew.paused():
            sampler = AlternatingSampler(self.spec, self.batch, policy or self.policy, config, self.device)
            try:
                return sampler.evaluate(games, index, greedy)
            finally:
                sampler.close()
                seconds = time.perf_counter() - start
                self._meter.exclude(seconds)
                self.pool.exclude(seconds)

    def close(self) -> None:
        self.crew.close()
        self.pool.close()

    def _start(self, states: dict[int, Any] | None = None) -> list[int]:
        """Starts threads, and agents, from these states if any. Returns agents whose environments were restarted."""
        if self._started:
            return []
        self._started = True
        self._server.copies.publish(self._num_learned)  # the policy may have been loaded since it was copied
        restarted = self.pool.start(states)
        if not self._deterministic:
            self.crew.set_numbers(self.queues.predictors, self.queues.trainers)
        if self.adjuster and states:
            self.set_counts(*self.adjuster.counts)
        return restarted

    def _wait_for_batch(self) -> SegmentBatch:
        """Waits until a trainer has completed a batch."""
        while not (batch := self.crew.wait_for_batch(WATCH_S)):
            self._watch()
        self._watch()
        return batch

    def _watch(self) -> None:
        """Checks the agents, if the last check was long enough ago."""
        if time.monotonic() >= self._next_watch:
            self.pool.watch(self.crew.paused)
            self._next_watch = time.monotonic() + WATCH_S

    # ---- measuring and adjusting ----

    def read_metrics(self) -> dict[str, float]:
        """Returns the measurements since the last call (see `Meter.read`), and the numbers of agents and threads."""
        return self._meter.read(self._server.counts) | {
            "agents": self.pool.num_agents,
            "predictors": self.queues.predictors,
            "trainers": self.queues.trainers,
        }

    def set_counts(self, num_agents: int, num_predictors: int, num_trainers: int) -> None:
        """Changes the numbers of agents, predictors and trainers while they run.

        An agent that retires hands over its unfinished segment first."""
        self._start()
        self.queues = replace(self.queues, predictors=num_predictors, trainers=num_trainers)
        if not self._deterministic:
            self.crew.set_numbers(num_predictors, num_trainers)
        self.pool.set_number(num_agents)

    def _adjust(self) -> None:
        """Reports the work done so far to the adjuster, and applies the numbers that it returns."""
        if not self.adjuster:
            return
        now = time.monotonic()
        if now >= self._next_memory_reading:
            self._memory_share, self._next_memory_reading = used_share(), now + 1.0
        if self.pool.replays_fill:  # steps without draws cost the learner less
            self.adjuster.restart_window()
        if counts := self.adjuster.advance(now, self._objective, self._memory_share):
            self.set_counts(*counts)

    @property
    def _objective(self) -> int:
        """The total whose rate adjustment maximizes."""
        is_trainings = self.queues.adjustment_objective == "trainings"
        return self._num_learned if is_trainings else self._server.counts.predictions

    def _pause_adjustment(self) -> None:
        """Leaves the time until the next rollout, and the work in it, out of the adjuster's window."""
        self._paused_at = self._paused_at or (time.monotonic(), self._objective)

    def _continue_adjustment(self) -> None:
        if self.adjuster and self._paused_at:
            since_s, total = self._paused_at
            self.adjuster.exclude(time.monotonic() - since_s, self._objective - total)
        self._paused_at = None

    # ---- checkpoints ----

    def get_state(self) -> dict[str, Any]:
        """Returns, between two rollouts, the state that the next one continues from, with the queues' contents."""
        self._start()
        self._pause_adjustment()
        while self.pool.starting:
            self.pool.watch(self.crew.paused)
            time.sleep(WATCH_S)
        with self.crew.gate.closed():
            arrays = self.pool.arrays
            agents, failed = self.pool.get_states(self.crew.check)
            with self.crew.auxiliary_gate.closed():
                queued = self.crew.take_segments()
                for agent, error in failed.items():
                    self.pool.replace(agent, error, lambda: nullcontext(queued))
            slots = np.flatnonzero(arrays["state"] != SlotState.FREE).tolist()
            return {
                "agents": agents,
                "num_agents": self.pool.num_wanted,  # agents that have just failed have no state
                "slots": {slot: int(arrays["state"][slot]) for slot in slots},
                "arrays": {name: a[slots] for name, a in arrays.items() if name not in ("status", "restarts", "state")},
                "restarts": arrays["restarts"].copy(),
                "num_retired": self.pool.num_retired,
                "queued": queued,
                "server": self._server.get_state(slots),
                "complete": [batch.get_state() for batch in self.crew.complete],
                "partly_filled": [batch.get_state() for batch in self.crew.partly_filled()],
                "num_learned": self._num_learned + (self._learned is not None),
                "steps_done": self._steps_done,
                "adjuster": self.adjuster and self.adjuster.get_state(),
            }

    def set_state(self, state: dict[str, Any]) -> list[int]:
        """Continues from get_state's result, before the first rollout. Returns the environments that were restarted."""
        arrays, slots = self.pool.arrays, list(state["slots"])
        arrays["restarts"][: len(state["restarts"])] = state["restarts"]
        self.pool.num_retired = state["num_retired"]
        self.pool.set_members(state["agents"])
        self.pool.restore_slots(state["slots"])
        for name, values in state["arrays"].items():
            arrays[name][slots] = values
        self._server.set_state(state["server"], slots)
        self.crew.queued.extend(state["queued"])
        self.crew.restore(*(self._restored(state[name]) for name in ("complete", "partly_filled")))
        self._num_learned, self._steps_done = state["num_learned"], state["steps_done"]
        if self.adjuster and state["adjuster"]:
            self.adjuster.set_state(state["adjuster"])
        restarted = self._start(state["agents"])
        if not self.adjuster:
            self.pool.set_number(state["num_agents"])
        return [self.batch.first_env + agent for agent in restarted]

    def _restored(self, states: list[Any]) -> list[SegmentBatch]:
        batches = [self._new_batch() for _ in states]
        for batch, state in zip(batches, states, strict=True):
            batch.set_state(state)
        return batches
