"""Defines one iteration, which collects a rollout and learns from it. The training loop and benchmarks repeat it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from accel_rl.algos.base import Algo, Stats
from accel_rl.hardware.placement import Plan
from accel_rl.hardware.timers import DeviceTimer
from accel_rl.rollout import Rollout
from accel_rl.run_folder.initial_policy import InitialPolicy, needs_first_rollout
from accel_rl.samplers.base import NO_HOOK, Sampler, StepHook
from accel_rl.updates import Update


class IterationResult(NamedTuple):
    """An iteration's result. stats: one entry for each call that learned, in order. sample_s, learn_s: wall time."""

    rollout: Rollout
    stats: list[Stats]
    sample_s: float
    learn_s: float


class Iteration:
    """The body of the training loop: collects a rollout and learns from it, during sampling and afterwards.

    An algorithm with running statistics initializes them from the run's first rollout and learns nothing from it,
    unless a trained policy provides them. If the update includes auxiliary tasks, these store each rollout first.

    plan: sets how many threads torch may use for sampling and for learning. pull_horizon: copies the newest central
    parameters every so many steps of a rollout (None: only updates exchange them). initial: the trained policy that
    the run began with.
    """

    def __init__(
        self,
        sampler: Sampler,
        algo: Algo,
        update: Update,
        plan: Plan,
        pull_horizon: int | None = None,
        initial: InitialPolicy | None = None,
    ):
        self.sampler, self.algo, self.update, self.tasks = sampler, algo, update, update.tasks
        self.plan, self.pull_horizon = plan, pull_horizon
        self.skips_first_rollout = needs_first_rollout(algo, initial)
        self.timer = DeviceTimer(algo.device)  # measures learning

    def collect_and_learn(self, step: int) -> IterationResult:
        """Runs one iteration. step: agent steps of the whole run so far."""
        start, algo, update, window = time.perf_counter(), self.algo, self.update, self.algo.window
        learns = step > 0 or not self.skips_first_rollout
        stats: list[Stats] = []
        learn_s = 0.0

        def timed(learn: Callable[..., Stats], *arguments: Any) -> None:
            nonlocal learn_s
            if not learns:
                return
            started = time.perf_counter()
            torch.set_num_threads(self.plan.learning_threads)
            with self.timer:
                if new := learn(*arguments, update):
                    stats.append(new)
            torch.set_num_threads(self.plan.sampling_threads)
            learn_s += time.perf_counter() - started

        def on_step(t: int) -> None:
            if self.pull_horizon and t % self.pull_horizon == 0:
                update.pull()
            if window:
                if (envs := window.envs_to_update(t)) is not None:
                    recent = self._normalize(self.sampler.recent(t, window.steps, envs))
                    timed(self._learn_on_step, t, recent, envs)
            elif algo.learns_on_step:
                timed(self._learn_on_step, t, None, slice(None))

        torch.set_num_threads(self.plan.sampling_threads)
        algo.before_rollout(step)
        every = 1 if algo.learns_on_step else self.pull_horizon
        hook = StepHook(on_step, every, window.envs_to_update if window else None) if every else NO_HOOK
        rollout = self.sampler.collect(hook, step)
        if self.pull_horizon:
            update.pull()
        timed(self._learn, self._normalize(rollout))
        if algo.statistics:
            algo.statistics.update(rollout, update)
        return IterationResult(rollout, stats, time.perf_counter() - start - learn_s, learn_s)

    def _learn_on_step(self, t: int, recent: Rollout | None, envs: slice, update: Update) -> Stats:
        """Learns between two steps, from these environments."""
        if self.tasks:
            if self.tasks.is_filling:
                return {}
            self.tasks.envs = envs
        return self.algo.on_step(t, recent, update)

    def _learn(self, rollout: Rollout, update: Update) -> Stats:
        if self.tasks:
            rollout = self.tasks.store(rollout)
            if self.tasks.is_filling:
                return {}
            self.tasks.envs = slice(None)
        return self.algo.learn(rollout, update)

    def _normalize(self, rollout: Rollout) -> Rollout:
        return self.algo.statistics.normalize(rollout) if self.algo.statistics else rollout
