"""Adds auxiliary tasks to any actor-critic: their shared replay, when they learn, and how updates include them.

The algorithm does not know about them. The run stores rollouts for them (training/iteration.py), and its update adds
their losses.
"""

import logging
import math
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from accel_rl.algos.auxiliary_settings import AuxiliarySettings
from accel_rl.algos.auxiliary_tasks import TASKS, AuxiliaryTask
from accel_rl.algos.base import Algo, RunInfo
from accel_rl.errors import UsageError
from accel_rl.hardware.host_memory import check_all_fit
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.trunks import initialize_by_fan_in
from accel_rl.replay.replay import saves
from accel_rl.replay.sequences import SequenceBatch, SequenceReplay, WindowBatch, sequence_bytes
from accel_rl.replay.transitions import DrawnRows
from accel_rl.rollout import Rollout
from accel_rl.updates import LossPart, Update

logger = logging.getLogger("accel_rl")

MAX_STEPS = 20  # longest sequence by default: UNREAL's t_max


def add_heads(policy: ActorCritic, settings: Any) -> None:
    """Adds the heads of the active tasks to the policy, if settings are AuxiliarySettings.

    Leaves later random draws and the rest of the policy unchanged. Raises UsageError for a task that is impossible in
    the environment."""
    if not isinstance(settings, AuxiliarySettings):
        return
    with torch.random.fork_rng(devices=[]):
        for name in settings.task_names:
            if head := TASKS[name].make_head(policy, settings):
                policy.auxiliary_heads[name] = head
    if getattr(settings, "initialization", None) == "fan_in":
        with torch.random.fork_rng(devices=[]):
            initialize_by_fan_in(policy.auxiliary_heads)


class AuxiliaryTasks:
    """The auxiliary tasks of an algorithm. They store rollouts, and draw batches for each task's loss."""

    replay: Any = None
    """The SequenceReplay that tasks draw from, if the learner keeps one; `setup` makes it."""

    def __init__(self, algo: Algo):
        settings = algo.settings
        self.algo, self.settings, self.is_recurrent = algo, settings, algo.policy.state_size > 0
        steps = settings.auxiliary_sequence_steps
        steps_of_update = algo.window.steps if algo.window else algo.horizon
        self.sequence_steps: int = min(steps_of_update, MAX_STEPS) if steps is None else steps
        self.tasks: list[AuxiliaryTask] = []  # made by `setup`
        self.envs = slice(None)  # the environments that the next updates learn from

    @classmethod
    def of(cls, algo: Algo) -> Self | None:
        """Returns the algorithm's tasks, or None if its settings name none."""
        settings = algo.settings
        return cls(algo) if isinstance(settings, AuxiliarySettings) and settings.task_names else None

    @property
    def needs_terminal_frames(self) -> bool:
        """True if rollouts must hold the true last frames of terminated episodes (`Rollout.terminal_frames`)."""
        return any(TASKS[name].needs_terminal_frames for name in self.settings.task_names)

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for settings that do not fit together, or a replay that does not fit into memory."""
        self.check_sizes(run, horizon=self.algo.horizon, auxiliary_sequence_steps=self.sequence_steps)
        size = self.settings.auxiliary_replay_steps
        check_all_fit(self._num_bytes, size, "auxiliary_replay_steps", run.devices, self.algo.device.type == "cpu")

    def check_sizes(self, run: RunInfo, **lengths: int) -> None:
        """Raises UsageError if any of the lengths, named after their settings, exceeds the replay, or if tasks would
        wait the whole run for a full replay."""
        start, size = self.settings.auxiliary_start, self.settings.auxiliary_replay_steps
        for name, steps in lengths.items():
            if steps > size:
                raise UsageError(f"{name}={steps} is more than auxiliary_replay_steps={size} keeps; change one of them")
        if start != "at_once" and size * run.num_envs >= run.steps:
            raise UsageError(
                f"auxiliary_start={start} waits for {size} steps of each of {run.num_envs} environments, but the run "
                f"has {run.steps} steps: raise steps, or lower auxiliary_replay_steps"
            )

    @property
    def _num_bytes(self) -> int:
        algo, size = self.algo, self.settings.auxiliary_replay_steps
        return sequence_bytes(algo.spec, algo.local_envs, size, self.is_recurrent)

    def setup(self, seed: int) -> None:
        """Makes the tasks and allocates the replay, once the policy is on its device. seed: for the draws."""
        algo, settings, device = self.algo, self.settings, self.algo.device
        self.replay = SequenceReplay(
            algo.spec,
            algo.local_envs,
            settings.auxiliary_replay_steps,
            self.sequence_steps,
            torch.Generator(device).manual_seed(seed),
            device,
            self.is_recurrent,
        )
        self.replay.in_checkpoints = saves(settings.checkpoint_replay, self._num_bytes)
        self._all_envs = torch.arange(algo.local_envs, device=device)
        self._make_tasks()
        logger.info(
            "auxiliary tasks: the replay needs %.1f MB on %s, plus the last frames of episodes",
            self._num_bytes / 1e6,
            device,
        )

    def _make_tasks(self) -> None:
        self.tasks = [TASKS[name](self.algo.policy, self.replay, self.settings) for name in self.settings.task_names]

    @property
    def is_filling(self) -> bool:
        """True while the algorithm itself waits until the replay is full (auxiliary_start=all_when_full)."""
        return self.settings.auxiliary_start == "all_when_full" and not self.replay.is_full

    def store(self, rollout: Rollout) -> Rollout:
        """Stores the next rollout; returns it without terminal frames, for the algorithm to learn from. Their number
        differs from rollout to rollout, which CUDA graphs do not allow."""
        self.replay.append(rollout)
        return replace(rollout, terminal_frames=None)

    def draw(self, update: Update) -> list[LossPart]:
        """Draws a sequence or window for each task and each of `envs`; returns the tasks' loss parts.

        They are valid until the next call."""
        replay, parts = self.replay, []
        if self.settings.auxiliary_start != "at_once" and not replay.is_full:
            return []
        noise = [replay.draw_noise() for _ in self.tasks]
        for some_envs in self._split(self._all_envs[self.envs], update):
            batches = update.graphed(self._draw, noise, some_envs, replay.ring.rows, uses=replay.replaceable)
            parts += [LossPart(task.loss, (batch,)) for task, batch in zip(self.tasks, batches, strict=True)]
        return parts

    def _draw(self, noise: list[Tensor], envs: Tensor, rows: DrawnRows) -> list[SequenceBatch | WindowBatch]:
        """Draws each task's batch by its noise, on a GPU in one CUDA graph. For arguments, see `AuxiliaryTask.draw`."""
        return [task.draw(each, envs, rows) for task, each in zip(self.tasks, noise, strict=True)]

    def _split(self, envs: Tensor, update: Update) -> tuple[Tensor, ...]:
        """Splits environments on a CPU, so that the observations of each part fit into a slice of `update`."""
        if envs.device.type != "cpu":
            return (envs,)
        elements = (self.sequence_steps + 1) * math.prod(self.algo.spec.observation_shape)
        return torch.split(envs, max(1, update.slice_elements // elements))
