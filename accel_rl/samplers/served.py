"""Defines what the serial and the alternating sampler share: a constructor, and an action server."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch

from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Policy, Rollout
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import NO_HOOK, SamplerConfig, StepHook, noise_generator


class ServedSampler(ABC):
    """A sampler whose environments take their steps together, with actions from an ActionServer.

    A subclass builds the environments of training, collects rollouts, and plays evaluations."""

    def __init__(
        self,
        spec: EnvSpec,
        batch: BatchConfig,
        policy: Policy,
        config: SamplerConfig,
        device: str | torch.device = "cpu",
    ):
        self.spec, self.policy, self.config = spec, policy, config
        self.batch = replace(batch, terminal_frames=config.terminal_frames)
        self.device = torch.device(device)
        self.seconds = {"env_wait": 0.0, "inference": 0.0, "action_wait": 0.0}
        self._started = False
        self._server, self._envs = self._build(noise_generator(self.batch, self.device))

    @abstractmethod
    def _build(self, generator: torch.Generator) -> tuple[ActionServer, Any]:
        """Builds what training needs: the server, whose policy draws noise from generator, and the environments, which
        have `start`, `get_state` and `set_state` of an EnvBatch."""

    @abstractmethod
    def _collect(self, hook: StepHook) -> Rollout:
        """Returns the next rollout of training."""

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
        return self._collect(hook)

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        return self._server.recent(t, num_steps, envs)

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
