"""Auxiliary tasks with the queued sampler, as in GUNREAL: agents keep the replays, draw from them, and send the draws
with their segments (Shirahata et al. 2018, section 3, Algorithms 6 and 9).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.auxiliary import AuxiliaryTasks
from accel_rl.algos.auxiliary_tasks import PreparedSequences, PreparedWindows
from accel_rl.algos.base import RunInfo
from accel_rl.algos.replay_settings import saves
from accel_rl.config.queue_settings import AgentReplayConfig
from accel_rl.errors import UsageError
from accel_rl.hardware.host_memory import check_fits
from accel_rl.replay.sequences import sequence_bytes
from accel_rl.rollout import Rollout
from accel_rl.updates import LossPart, Update

Prepared = PreparedSequences | PreparedWindows


class AgentTasks(AuxiliaryTasks):
    """Auxiliary tasks that learn from the agents' draws, which come with each rollout; the learner keeps no replay.

    If a rollout brings several updates, as in PPO, each learns from all of its draws."""

    @property
    def is_filling(self) -> bool:
        return False

    def agent_replay_config(self, num_agents: int, seed: int) -> AgentReplayConfig:
        """Returns what each agent keeps and draws. num_agents: at the start; seed: of the draws."""
        settings = self.settings
        return AgentReplayConfig(
            size=settings.auxiliary_replay_steps,
            sequence_steps=self.sequence_steps,
            tasks=settings.task_names,
            pixel_control_cell=settings.pixel_control_cell,
            pixel_control_discount=settings.pixel_control_discount,
            discount=settings.discount,
            waits=settings.auxiliary_start != "at_once",
            in_checkpoints=saves(settings.checkpoint_replay, self._bytes_of(num_agents)),
            seed=seed,
        )

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for settings that agents cannot follow, or replays that do not fit into memory."""
        settings = self.settings
        if self.is_recurrent:
            raise UsageError(
                "with sampler=queued, agents draw for the auxiliary tasks, and they replay no recurrent cores: use "
                "--core none, or --sampler alternating"
            )
        if settings.auxiliary_start == "all_when_full":
            raise UsageError(
                "auxiliary_start=all_when_full waits for the learner's replay, but with sampler=queued agents keep "
                "replays, each its own: use when_full, or --sampler alternating"
            )
        self.check_sizes(run, auxiliary_sequence_steps=self.sequence_steps)
        num_bytes, way_out = self._bytes_of(run.num_envs), "fewer agents (--envs), or "
        check_fits(num_bytes, settings.auxiliary_replay_steps, "auxiliary_replay_steps", torch.device("cpu"), way_out)

    def _bytes_of(self, num_agents: int) -> int:
        """Returns the bytes of the agents' replays, which have the layout of a learner's."""
        return sequence_bytes(self.algo.spec, num_agents, self.settings.auxiliary_replay_steps)

    def setup(self, seed: int) -> None:
        """Makes the tasks."""
        self._drawn: dict[str, dict[str, Tensor]] = {}
        self._make_tasks()

    def store(self, rollout: Rollout) -> Rollout:
        """Keeps the agents' draws until the next rollout; returns the rollout without them."""
        self._drawn, self._num_segments = rollout.auxiliary or {}, rollout.num_segments
        return replace(rollout, terminal_frames=None, auxiliary=None)

    def draw(self, update: Update) -> list[LossPart]:
        """Returns the tasks' parts of a loss on the draws that came with the rollout."""
        parts = []
        for task in self.tasks:
            if drawn := self._drawn.get(task.name):
                batch = task.Prepared(**{name: drawn[name] for name in task.Prepared._fields if name in drawn})
                parts += [LossPart(task.loss, (part,)) for part in self._parts(batch, update)]
        return parts

    def _parts(self, batch: Prepared, update: Update) -> Iterator[Prepared]:
        """Yields the batch: on a GPU as it is, always with the same shape; on a CPU without empty columns, in parts
        whose observations are not larger than `update` allows."""
        num_steps = batch.num_steps
        if num_steps.device.type != "cpu":
            yield batch
            return
        batch = _columns(batch, slice(self._num_segments))
        drawn = batch.num_steps > 0
        if not drawn.all():
            batch = _columns(batch, drawn)
        elements = len(batch.rows) * math.prod(self.algo.spec.observation_shape)
        step = max(1, update.slice_elements // elements)
        for start in range(0, len(batch.num_steps), step):
            yield _columns(batch, slice(start, start + step))


def _columns(batch: Any, chosen: Any) -> Any:
    """Returns some columns of prepared sequences or windows; columns are the first axis, or the second behind time."""
    return type(batch)(*(None if x is None else x[chosen] if x.dim() == 1 else x[:, chosen] for x in batch))
