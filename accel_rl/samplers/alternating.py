"""Synchronized batched sampling with two alternating groups of simulator processes (Stooke & Abbeel 2018, section 3).

While one group of workers steps its environments, the other group's observations go through the network as one batch.
Read this file, then action_server.py (how actions are chosen) and worker.py (what the processes do).
"""

import time
from collections.abc import Callable

import torch

from accel_rl.envs.batches.env_batch import rollout_layout
from accel_rl.errors import UsageError
from accel_rl.rollout import Game, Policy, Rollout
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import NO_HOOK, GamesToPlay, SamplerConfig, ServedSampler, StepHook, noise_generator
from accel_rl.samplers.env_arrays import EnvArrays
from accel_rl.samplers.gpu_action_server import make_server
from accel_rl.samplers.worker_pool import WorkerPool


class AlternatingSampler(ServedSampler):
    """A sampler with config.num_workers simulator processes; this process serves the group that is ready first.

    Raises UsageError or RunError if an environment cannot be built, UsageError for config.num_workers=0. Every method
    that waits raises RunError if a worker fails. `close` ends the workers.
    """

    def _build(self, generator: torch.Generator) -> tuple[ActionServer, WorkerPool]:
        config = self.config
        if not config.num_workers:
            raise UsageError("workers=0 must be at least 1; use SerialSampler (--sampler serial) for no workers")
        train, self._evaluation = map(self._make_arrays, (config, config.for_evaluation()))
        server = self._make_server(train, generator, config)
        if self.device.type == "cuda":
            self.seconds |= {"gpu_wait": 0.0, "gpu": 0.0}
        try:
            self.pool = WorkerPool(config, self.batch, train, self._evaluation)
        except BaseException:
            server.close()  # it has pinned memory
            raise
        self._loop = ServingLoop(self.pool, self.seconds)
        return server, self.pool

    def _make_arrays(self, config: SamplerConfig) -> EnvArrays:
        layout = rollout_layout(self.spec, config.horizon, config.num_envs, config.window)
        return EnvArrays(layout, config.num_workers, config.window)

    def _make_server(self, arrays: EnvArrays, generator: torch.Generator, config: SamplerConfig) -> ActionServer:
        return make_server(self.spec, arrays.arrays, generator, config, self.device, arrays.memory)

    def _collect(self, hook: StepHook) -> Rollout:
        rollout = self._loop.collect(self._server, self.policy, hook=hook)
        if self.device.type == "cuda":
            self.seconds["gpu"] = self._server.gpu_s
        return rollout

    def evaluate(self, games: GamesToPlay, index: int, greedy: bool, policy: Policy | None = None) -> list[Game]:
        role = index + 1
        generator = noise_generator(self.batch, self.device, role)
        server = self._make_server(self._evaluation, generator, self.config.for_evaluation())
        try:
            self.pool.open_evaluation(role)
            played = games.play(lambda: self._loop.collect(server, policy or self.policy, greedy), server.num_envs)
            self.pool.close_evaluation()
        finally:  # the next evaluation pins the same memory
            server.close()
        return played

    def close(self) -> None:
        try:
            self._server.close()
        finally:  # workers must end even if the GPU has failed
            self.pool.close()


class ServingLoop:
    """A loop that serves whichever group of a pool is ready first, and measures where the server's time goes.

    seconds: collects the wall time of rollouts by purpose, as in `Sampler`, without hooks. clock: returns the time in
    seconds.
    """

    def __init__(self, pool: WorkerPool, seconds: dict[str, float], clock: Callable[[], float] = time.perf_counter):
        self._pool, self._seconds, self._clock = pool, seconds, clock
        self._counted_until = 0.0  # time that has been added to `seconds`
        self._acting: dict[int, ActionServer] = {}  # groups whose actions a GPU still computes, and their servers

    def collect(self, server: ActionServer, policy: Policy, greedy: bool = False, hook: StepHook = NO_HOOK) -> Rollout:
        T = server.horizon
        server.begin(policy, greedy)
        self._pool.begin()
        self._acting.clear()
        self._counted_until = self._clock()
        step = [0, 0]  # the row that each group announces next
        due, held = hook.next_call(0, T, server.groups)  # no group acts beyond step `due` before the hook
        while step != [T + 1, T + 1]:
            # every row up to step `due` is in, and no group waits for actions that a GPU still computes
            if min(step) > due and not self._acting:
                self._count("inference")
                hook.run(due)
                server.learner_has_worked()
                self._counted_until = self._clock()
                for each in held:
                    self._act(server, each, due)
                due, held = hook.next_call(due + 1, T, server.groups)
            behind = int(step[1] < step[0])
            awaited = [group for group in (behind, 1 - behind) if step[group] <= due and group not in self._acting]
            self._count("inference")
            group = self._pool.wait(awaited, self._has_acted if self._acting else None)
            self._count("env_wait" if awaited else "gpu_wait")
            if group is None:
                self._hand_over()
                continue
            t = step[group]
            server.receive(group, t)
            step[group] += 1
            if t < T and not (t == due and group in held):
                self._act(server, group, t)
        self._count("inference")
        self._pool.end()
        self._seconds["action_wait"] = self._pool.status.waited_s
        return server.finish()

    def _act(self, server: ActionServer, group: int, t: int) -> None:
        server.act(group, t)
        self._acting[group] = server
        self._hand_over()

    def _has_acted(self) -> bool:
        """Returns whether actions have arrived that are not handed over yet."""
        return any(server.has_acted(group) for group, server in self._acting.items())

    def _hand_over(self) -> None:
        """Announces the actions that have arrived."""
        for group in [group for group, server in self._acting.items() if server.has_acted(group)]:
            self._pool.announce_actions(group)
            self._acting.pop(group).record()  # last, while the environments step

    def _count(self, purpose: str) -> None:
        """Adds the time since the last call to a purpose's seconds."""
        now = self._clock()
        self._seconds[purpose] += now - self._counted_until
        self._counted_until = now
