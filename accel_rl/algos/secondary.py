"""A second network that learns from DQN's replay without acting (Stooke & Abbeel 2018, section 5.4.2).

It shows what the size of the batch does to learning, whatever it does to exploration.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos.base import MakeUpdate, Stats, frozen_copy
from accel_rl.models.bf16_weights import refresh
from accel_rl.models.q_network import QNetwork
from accel_rl.replay.replay import restore_generator
from accel_rl.replay.transitions import TransitionBatch
from accel_rl.updates import Update

Draw = Callable[[Update, int, torch.Generator], tuple[Tensor, TransitionBatch, Tensor]]
LossOf = Callable[[QNetwork, QNetwork, TransitionBatch], tuple[Tensor, Stats]]


class SecondaryNetwork:
    """Starts as a copy of the first network, and learns from as many samples, in batches of its own, drawn uniformly by
    a generator of its own: so the first network learns the same with it as without.

    draw, loss_of: of the first network, as `DQN.draw_batch` and `DQN.loss_of`. batch_size: of this learner; seed: this
    learner's; device: of the replay."""

    def __init__(
        self,
        first: QNetwork,
        draw: Draw,
        loss_of: LossOf,
        batch_size: int,
        seed: int,
        device: torch.device,
        make_update: MakeUpdate,
    ):
        self.network, self.target = deepcopy(first), frozen_copy(first)
        self._draw, self._loss_of, self.batch_size = draw, loss_of, batch_size
        self.num_behind = 0.0  # samples that it has yet to learn from
        sequence = np.random.SeedSequence(seed, spawn_key=(1,))
        self.generator = torch.Generator(device).manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
        self.update = make_update(self.network)

    def sync_target(self, count: int) -> None:
        self.update.sync_target(self.target, count)

    def learn(self, num_samples: int, learning_rate: float) -> Stats:
        """Makes up for the samples of one update of the first network; returns the means over its own updates."""
        self.num_behind += num_samples
        updates: list[Stats] = []
        while self.num_behind >= self.batch_size:
            self.num_behind -= self.batch_size
            _, batch, num_valid = self._draw(self.update, self.batch_size, self.generator)
            updates.append(self.update.minimize(self.loss, (batch,), num_valid, learning_rate))
            updates[-1].pop("priority")
        names = updates[0] if updates else ()
        if len(updates) == 1:
            return {f"secondary_{name}": updates[0][name] for name in names}
        return {f"secondary_{name}": torch.stack([each[name] for each in updates]).mean() for name in names}

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Stats]:
        return self._loss_of(self.network, self.target, batch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "update": self.update.state_dict(),
            "target": self.target.state_dict(),
            "num_behind": self.num_behind,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.update.load_state_dict(state["update"])
        self.target.load_state_dict(state["target"])
        refresh(self.target)
        self.num_behind = state["num_behind"]
        restore_generator(self.generator, state["generator"])
