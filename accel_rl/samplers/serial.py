"""The sampler without processes: tests use it as their reference, and one can set breakpoints in it."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from accel_rl.envs.batches.batch_simulator import BatchConfig, EnvBatch, rollout_layout, select_envs
from accel_rl.envs.batches.vector_batch import make_batch
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Game, Policy, Rollout
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import NO_HOOK, GamesToPlay, SamplerConfig, StepHook, noise_generator
from accel_rl.samplers.gpu_action_server import make_server


class SerialSampler:
    """A sampler that steps all environments in this process, one by one; acts by group like AlternatingSampler."""

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        policy: Policy,
        config: SamplerConfig,
        device: str | torch.device = "cpu",
    ):
        batch = replace(batch, terminal_frames=config.terminal_frames)
        self.spec, self.batch, self.policy, self.config = spec, batch, policy, config
        self.device = torch.device(device)
        arrays = self._make_arrays(config)
        self._server = self._make_server(arrays, noise_generator(batch, self.device), config)
        self._envs = self._make_envs(batch, select_envs(arrays, slice(None), config.window))
        self._started = False
        self.seconds = {"env_wait": 0.0, "inference": 0.0, "action_wait": 0.0}

    def _make_arrays(self, config: SamplerConfig) -> dict[str, Any]:
        layout = rollout_layout(self.spec, config.horizon, config.num_envs, config.window)
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}

    def _make_envs(self, batch: BatchConfig, arrays: dict[str, Any]) -> Any:
        return make_batch(batch, arrays, first_env=0)

    def _make_server(self, arrays: dict[str, Any], generator: torch.Generator, config: SamplerConfig) -> ActionServer:
        return make_server(self.spec, arrays, generator, config, self.device)

    @property
    def bytes_moved(self) -> int:
        return self._server.bytes_moved

    @property
    def num_restarts(self) -> int:
        return int(self._server.arrays["restarts"].sum())

    def collect(self, hook: StepHook = NO_HOOK, first_step: int | None = None) -> Rollout:
        if not self._started:
            self._envs.start()
            self._started = True
        if first_step is not None:
            self._server.steps_done = first_step
        return self._collect(self._server, self._envs, self.policy, hook=hook)

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        return self._server.recent(t, num_steps, envs)

    def _collect(
        self,
        server: ActionServer,
        envs: EnvBatch,
        policy: Policy,
        greedy: bool = False,
        hook: StepHook = NO_HOOK,
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
        envs.start()
        try:
            return games.play(lambda: self._collect(server, envs, policy or self.policy, greedy), server.num_envs)
        finally:
            envs.close()

    def read_metrics(self) -> dict[str, float]:
        return {}

    def get_state(self) -> dict[str, Any]:
        return {"server": self._server.get_state(), "envs": self._envs.get_state() if self._started else None}

    def set_state(self, state: dict[str, Any]) -> list[int]:
        self._server.set_state(state["server"])
        if state["envs"] is None:
            return []
        self._started = True
        restarted = self._envs.set_state(state["envs"])
        self._server.truncate_restarted(restarted)
        return [self.batch.first_env + env for env in restarted]

    def close(self) -> None:
        self._envs.close()
