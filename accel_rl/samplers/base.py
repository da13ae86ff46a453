"""Defines what samplers share: their interface and settings, noise generators, evaluation games, and a base class."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.rollout import Game, Policy, Rollout

if TYPE_CHECKING:
    from accel_rl.samplers.action_server import ActionServer  # which imports this module

EVALUATION_HORIZON = 8  # steps between two checks for finished games
MAX_GAME_STEPS = 27_100  # per game: Atari's limit of 27,000 and a margin; other environments may never end


@dataclass(frozen=True)
class StepHook:
    """A callback between the steps of a rollout, and the groups that wait for it.

    on_step(t) runs for t = 0, every, 2 * every, ...: after both groups have received their actions of step t, before
    either receives those of step t + 1. If envs_to_update(t) names environments, the groups that hold any of them
    receive their actions of step t only after on_step(t); a group that holds none simulates meanwhile. So t alone
    decides which policy chose an action, not the order in which groups become ready. envs_to_update is called once for
    each of these t, in order."""

    on_step: Callable[[int], None] | None = None
    every: int = 1
    envs_to_update: Callable[[int], slice | None] | None = None

    def next_call(self, t: int, horizon: int, groups: Sequence[slice]) -> tuple[int, list[int]]:
        """Returns the first step from t on at which on_step runs, and the groups whose actions of that step wait for
        it. Returns the horizon and no groups if on_step does not run again."""
        due = -(-t // self.every) * self.every
        if self.on_step is None or due >= horizon:
            return horizon, []
        envs = self.envs_to_update(due) if self.envs_to_update else None
        if envs is None:
            return due, []
        return due, [g for g, own in enumerate(groups) if envs.start < own.stop and own.start < envs.stop]

    def run(self, t: int) -> None:
        assert self.on_step is not None
        self.on_step(t)


NO_HOOK = StepHook()


@dataclass(frozen=True)
class SamplerConfig:
    """Settings for num_envs environments in two groups, stepped by num_workers processes (env_arrays.py: assign_envs).

    Raises UsageError for an odd number of environments, or fewer of them than workers.
    num_workers=0, for samplers without workers: any number of environments; group 0 has the larger half.
    """

    num_envs: int
    horizon: int
    num_workers: int = 2
    num_evaluation_envs: int | None = None  # None: as many as for training
    env_timeout_s: float = 20.0
    env_build_timeout_s: float = 60.0
    spin: bool = False  # the server has a logical CPU to itself, and waits without sleeping
    cuda_graphs: bool = True
    window: int = 0  # steps of earlier rollouts that are kept for `recent`
    num_learners: int = 1  # learners of the whole run, each with num_envs environments
    worker_cpus: tuple[int | None, ...] | None = None  # logical CPU of each worker; None: the default placement
    terminal_frames: bool = False  # rollouts hold the true last frames of terminated episodes

    def __post_init__(self) -> None:
        for name, least in (("num_envs", 1), ("horizon", 1), ("num_workers", 0), ("num_learners", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name.removeprefix('num_')}={getattr(self, name)} must be at least {least}")
        if self.num_workers:
            _check_workers("envs", self.num_envs, self.num_workers)
            _check_workers("evaluation_envs", self.evaluation_envs, self.num_workers)

    @property
    def evaluation_envs(self) -> int:
        return self.num_evaluation_envs or self.num_envs

    def for_evaluation(self) -> "SamplerConfig":
        """Returns the settings for an evaluation's rollouts."""
        return replace(self, num_envs=self.evaluation_envs, horizon=EVALUATION_HORIZON, window=0, terminal_frames=False)


def _check_workers(name: str, num_envs: int, num_workers: int) -> None:
    if num_envs % 2:
        raise UsageError(f"{name}={num_envs} does not split into 2 groups; use an even number, or --sampler serial")
    if num_workers > num_envs:
        raise UsageError(f"workers={num_workers} are more than {name}={num_envs}; use {num_envs} or fewer")


class Sampler(Protocol):
    """The interface of samplers, which collect rollouts of config.horizon steps of all environments.

    seconds: wall time so far, by purpose: "env_wait" (the server waits for environments, perhaps for the GPU, too),
        "inference" (the server works), "action_wait" (the workers' mean wait for actions). An alternating sampler on a
        GPU also has "gpu_wait" (the server waits for the GPU alone: no group that could be served next is simulated)
        and "gpu" (the GPU works on actions).
    """

    config: SamplerConfig
    seconds: dict[str, float]

    @property
    def bytes_moved(self) -> int:
        """Bytes moved between host and GPU for sampling so far."""

    @property
    def num_restarts(self) -> int:
        """Number of training environments replaced by new ones so far (restart_on_error)."""

    def collect(self, hook: StepHook = NO_HOOK, first_step: int | None = None) -> Rollout:
        """Returns the next rollout; hook: runs between its steps.

        first_step: the run's agent steps so far; None: every learner has taken as many as this one."""

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        """Returns, in on_step(t), the num_steps steps before step t of some environments.

        If envs_to_update(t) named environments, envs must belong to the groups that waited. The steps may begin in
        earlier rollouts: the sampler keeps config.window steps. Steps before the run's first one are not valid. The
        tensors are views of storage that is overwritten after on_step returns."""

    def evaluate(self, games: "GamesToPlay", index: int, greedy: bool, policy: Any = None) -> list[Game]:
        """Returns whole games, played with separate environments and generators.

        index: decides their seeds. greedy: actions are not sampled. policy: the policy that plays; None: the policy in
        training."""

    def read_metrics(self) -> dict[str, float]:
        """Returns the sampler's own metrics since the last call, by name; most samplers have none."""

    def get_state(self) -> dict[str, Any]:
        """Returns, between rollouts, everything that the next rollout depends on except the policy."""

    def set_state(self, state: dict[str, Any]) -> list[int]:
        """Continues from get_state's result.

        Returns the environments that had to be restarted, by index in the run."""

    def close(self) -> None:
        """Ends all processes and releases all memory."""


def noise_generator(config: BatchConfig, device: torch.device, role: int = 0) -> torch.Generator:
    """Returns a generator for the policy's noise, independent of the environments' and other learners' generators."""
    spawn_key = (role, config.first_env) if config.first_env else (role,)
    seed = int(np.random.SeedSequence(config.seed, spawn_key=spawn_key).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True)
class GamesToPlay:
    """The games of an evaluation: a number of episodes, or all games that end within a number of steps.

    episodes: number of games. The first games of each environment count, equally many of each, so short games are not
        overrepresented. An environment stops after MAX_GAME_STEPS steps per game; unfinished games are left out.
    num_steps: steps of all environments together, instead of `episodes`.
    stop: called now and then; True ends the evaluation early.
    """

    episodes: int = 1
    num_steps: int | None = None
    stop: Callable[[], bool] = lambda: False

    def play(self, collect: Callable[[], Rollout], num_envs: int) -> list[Game]:
        """Returns the games, from rollouts of EVALUATION_HORIZON steps."""
        if self.num_steps is None:
            quota = [self.episodes // num_envs + (env < self.episodes % num_envs) for env in range(num_envs)]
            budget = MAX_GAME_STEPS * max(quota)  # steps of each environment
        else:
            budget = max(1, self.num_steps // num_envs)
            quota = [budget] * num_envs  # never reached: a game has at least one step
        played: list[Game] = []
        steps, ended_at = 0, [0] * num_envs  # games follow each other without a gap
        while any(quota) and steps < budget and not self.stop():
            for game in collect().games:
                ended_at[game.env] += game.length
                if quota[game.env] > 0 and ended_at[game.env] <= budget:
                    quota[game.env] -= 1
                    played.append(game)
            steps += EVALUATION_HORIZON
        return played


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
    def _build(self, generator: torch.Generator) -> "tuple[ActionServer, Any]":
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
