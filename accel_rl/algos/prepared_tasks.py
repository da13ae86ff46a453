"""Auxiliary tasks on sequences that the sampler draws, as in GUNREAL (Shirahata et al. 2018, section 3, Algorithms 6
and 9). Each rollout brings sequences and their targets.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from accel_rl.algos.auxiliary import AuxiliaryTasks
from accel_rl.algos.auxiliary_tasks import PreparedSequences, PreparedWindows
from accel_rl.algos.base import RunInfo
from accel_rl.rollout import Rollout
from accel_rl.updates import LossPart, Update

Prepared = PreparedSequences | PreparedWindows


class PreparedTasks(AuxiliaryTasks):
    """Auxiliary tasks that learn from the sampler's draws (`Rollout.auxiliary`); the learner keeps no replay.

    If a rollout leads to several updates, as in PPO, each of them learns from all of its draws."""

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError if sequences are longer than the replays, or if the run is too short to fill these."""
        self.check_sizes(run, auxiliary_sequence_steps=self.sequence_steps)

    def setup(self, seed: int) -> None:
        """Makes the tasks."""
        self._drawn: dict[str, dict[str, Tensor]] = {}
        self._make_tasks()

    def store(self, rollout: Rollout) -> Rollout:
        """Keeps the sampler's draws until the next rollout; returns the rollout without them."""
        self._drawn, self._num_columns = rollout.auxiliary or {}, rollout.num_segments
        return replace(rollout, terminal_frames=None, auxiliary=None)

    def draw(self, update: Update) -> list[LossPart]:
        """Returns the tasks' loss parts for the draws that came with the rollout."""
        parts = []
        for task in self.tasks:
            if drawn := self._drawn.get(task.name):
                batch = task.Prepared(**{name: drawn[name] for name in task.Prepared._fields if name in drawn})
                parts += [LossPart(task.loss, (part,)) for part in self._parts(batch, update)]
        return parts

    def _parts(self, batch: Prepared, update: Update) -> Iterator[Prepared]:
        """Yields the batch, on a GPU unchanged, since its shape must stay the same. On a CPU, drops empty columns and
        yields parts whose observations fit into a slice of `update`."""
        num_steps = batch.num_steps
        if num_steps.device.type != "cpu":
            yield batch
            return
        batch = _columns(batch, slice(self._num_columns))
        drawn = batch.num_steps > 0
        if not drawn.all():
            batch = _columns(batch, drawn)
        elements = len(batch.rows) * math.prod(self.algo.spec.observation_shape)
        step = max(1, update.slice_elements // elements)
        for start in range(0, len(batch.num_steps), step):
            yield _columns(batch, slice(start, start + step))


def _columns(batch: Any, chosen: Any) -> Any:
    """Returns some columns of prepared sequences or windows; columns are the first axis, or the second after time."""
    return type(batch)(*(None if x is None else x[chosen] if x.dim() == 1 else x[:, chosen] for x in batch))
