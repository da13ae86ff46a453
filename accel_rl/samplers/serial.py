"""The sampler without processes: tests use it as their reference, and breakpoints work in it."""

import time
from typing import Any

import numpy as np
import torch

from accel_rl.envs.batches.env_batch import BatchConfig, EnvBatch, rollout_layout, select_envs
from accel_rl.envs.batches.vector_batch import make_batch
from accel_rl.rollout import Game, Policy, Rollout
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import NO_HOOK, GamesToPlay, SamplerConfig, ServedSampler, StepHook, noise_generator
from accel_rl.samplers.gpu_action_server import make_server


class SerialSampler(ServedSampler):
    """A sampler that steps all environments in this process, one by one; acts by group like AlternatingSampler."""

    def _build(self, generator: torch.Generator) -> tuple[ActionServer, EnvBatch]:
        arrays = self._make_arrays(self.config)
        server = self._make_server(arrays, generator, self.config)
        return server, self._make_envs(self.batch, select_envs(arrays, slice(None), self.config.window))

    def _make_arrays(self, config: SamplerConfig) -> dict[str, Any]:
        layout = rollout_layout(self.spec, config.horizon, config.num_envs, config.window)
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}

    def _make_envs(self, batch: BatchConfig, arrays: dict[str, Any]) -> Any:
        return make_batch(batch, arrays, first_env=0)

    def _make_server(self, arrays: dict[str, Any], generator: torch.Generator, config: SamplerConfig) -> ActionServer:
        return make_server(self.spec, arrays, generator, config, self.device)

    def _collect(self, hook: StepHook) -> Rollout:
        return self._play(self._server, self._envs, self.policy, hook=hook)

    def _play(
        self, server: ActionServer, envs: EnvBatch, policy: Policy, greedy: bool = False, hook: StepHook = NO_HOOK
    ) -> Rollout:
        T, groups = server.horizon, range(len(server.groups))
        server.begin(policy, greedy)
        envs.begin()
        for group in groups:
            server.receive(group, 0)
        due, held = hook.next_call(0, T, server.groups)
        for t in range(T):
            self._act(server, t, [group for group in groups if t < due or group not in held])
            if t == due:
                hook.run(t)
                server.learner_has_worked()
                self._act(server, t, held)
                due, held = hook.next_call(t + 1, T, server.groups)
            start = time.perf_counter()
            envs.step(t)
            for group in groups:
                server.receive(group, t + 1)
            self.seconds["env_wait"] += time.perf_counter() - start
        rollout = server.finish()
        envs.pause()
        return rollout

    def _act(self, server: ActionServer, t: int, groups: list[int]) -> None:
        start = time.perf_counter()
        for group in groups:
            server.act(group, t)
            server.wait_until_acted(group)
            server.record()
        self.seconds["inference"] += time.perf_counter() - start

    def evaluate(self, games: GamesToPlay, index: int, greedy: bool, policy: Policy | None = None) -> list[Game]:
        role, config = index + 1, self.config.for_evaluation()
        arrays = self._make_arrays(config)
        server = self._make_server(arrays, noise_generator(self.batch, self.device, role), config)
        envs = self._make_envs(self.batch.for_evaluation(role), arrays)
        try:
            envs.start()
            return games.play(lambda: self._play(server, envs, policy or self.policy, greedy), server.num_envs)
        finally:
            envs.close()

    def close(self) -> None:
        self._envs.close()
