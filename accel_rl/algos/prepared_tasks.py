"""Auxiliary tasks whose sequences the sampler draws, as in GUNREAL: they come with each rollout, with their targets
(Shirahata et al. 2018, section 3, Algorithms 6 and 9).
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
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import Rollout
from accel_rl.updates import LossPart, Update

Prepared = PreparedSequences | PreparedWindows


class PreparedTasks(AuxiliaryTasks):
    """Learns from what the sampler has drawn (`Rollout.auxiliary`); the learner keeps no replay.

    With several updates for a rollout, as in PPO, each learns from all of it. num_envs: columns of a rollout."""

    @property
    def is_filling(self) -> bool:
        return False

    @property
    def saves_replay(self) -> bool:
        return False  # what the sampler keeps is part of its own state

    def validate(self, run: RunInfo, horizon: int, device: torch.device) -> None:
        self.check_sizes(run, auxiliary_sequence_steps=self.sequence_steps)

    def setup(self, policy: ActorCritic, seed: int, device: torch.device) -> None:
        """Makes the tasks; the learner keeps no replay."""
        self._drawn: dict[str, dict[str, Tensor]] = {}
        self.tasks = [task(policy, None, self.settings) for task in self.settings.auxiliary_tasks.values()]

    def store(self, rollout: Rollout) -> Rollout:
        """Keeps what has been drawn until the next rollout; returns the rollout without it."""
        self._drawn, self._num_columns = rollout.auxiliary or {}, rollout.num_segments
        return replace(rollout, terminal_frames=None, auxiliary=None)

    def draw(self, update: Update, envs: slice = slice(None)) -> list[LossPart]:
        """Returns the tasks' parts of a loss on what came with the rollout, whatever envs are."""
        parts = []
        for task in self.tasks:
            if drawn := self._drawn.get(task.name):
                batch = task.Prepared(**{name: drawn[name] for name in task.Prepared._fields if name in drawn})
                parts += [LossPart(task.loss, (part,)) for part in self._parts(batch, update)]
        return parts

    def _parts(self, batch: Prepared, update: Update) -> Iterator[Prepared]:
        """Returns the batch, which has one shape on a GPU; on a CPU without columns in which nothing was drawn, in
        parts whose observations are not larger than `update` allows."""
        num_steps = batch.num_steps
        if num_steps.device.type != "cpu":
            yield batch
            return
        batch = _columns(batch, slice(self._num_columns))
        drawn = batch.num_steps > 0
        if not drawn.all():
            batch = _columns(batch, drawn)
        elements = len(batch.rows) * math.prod(self.spec.observation_shape)
        step = max(1, update.slice_elements // elements)
        for start in range(0, len(batch.num_steps), step):
            yield _columns(batch, slice(start, start + step))


def _columns(batch: Any, chosen: Any) -> Any:
    """Returns some columns of prepared sequences or windows, where columns come first, or behind time."""
    return type(batch)(*(None if x is None else x[chosen] if x.dim() == 1 else x[:, chosen] for x in batch))
